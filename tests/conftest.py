"""Order of the tests: quick ones first, then those that run a whole model."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("model") is not None)
