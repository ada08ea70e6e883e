"""Graph nodes -> dispatches, one file a family. `GpuLowering` and `Joint` values are found by themselves.

Knows which kernel does what; knows nothing of buffers, drivers or the order of steps (see `program.py`).
How to write one is in `graphml_gpu.dispatch`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from graphml_gpu.dispatch import GpuLowering, Joint


@functools.cache
def table() -> Mapping[str, GpuLowering]:
    """Op name -> lowering."""
    by_op: dict[str, GpuLowering] = {}
    for value in _values():
        if isinstance(value, GpuLowering):
            by_op.update(dict.fromkeys(value.ops, value))
    return by_op


@functools.cache
def joints() -> tuple[Joint, ...]:
    """What can make several nodes together."""
    return tuple(dict.fromkeys(value for value in _values() if isinstance(value, Joint)))


def _values() -> Iterator[Any]:
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        yield from vars(importlib.import_module(entry.name)).values()
