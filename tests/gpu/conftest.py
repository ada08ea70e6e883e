"""Drivers of GPU libraries, each on the first device of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from graphml_gpu.driver import Driver

from tests.gpu.driven import NAMES, opened


@pytest.fixture(params=NAMES, scope="module")
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    made = opened(request.param)()
    yield made
    made.close()
