"""Collecting what a test made: a whole collection looks at all objects of a test run, for a second.

Knows the collector alone.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def kept_young() -> Iterator[Callable[[], None]]:
    """Within, nothing grows old by a collection; what is yielded collects what was made within."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield _collect_young
    finally:
        if was_enabled:
            gc.enable()


def _collect_young() -> None:
    gc.collect(1)
