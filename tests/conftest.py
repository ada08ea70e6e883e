"""Order of the tests: quick ones first, then those that run a whole model.

Hypothesis tries the same examples each time, so that a change is judged by what it changed; others are sought
with `pytest --hypothesis-profile explore`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("model") is not None)
