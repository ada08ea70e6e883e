"""Drivers of GPU libraries, each on the first device of this machine; kernels of graphics cards on any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from graphml_gpu.driver import Driver
from graphml_gpu.tuning import KERNELS

from tests.gpu.driven import NAMES, opened


@pytest.fixture(params=NAMES, scope="module")
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    made = opened(request.param)()
    yield made
    made.close()


@pytest.fixture
def as_on_graphics_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that are processors get the kernels of graphics cards, where they would have others."""
    monkeypatch.setenv(KERNELS.name, "graphics")
