"""Graph nodes -> kernel calls, one file a family. `table()` finds every `CpuLowering` value by itself.

Knows which kernel does what; knows nothing of addresses, threads or barriers (see `program.py`).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from graphml_cpu.lowering.step import CpuLowering


@functools.cache
def table() -> Mapping[str, CpuLowering]:
    """Op name -> lowering."""
    by_op: dict[str, CpuLowering] = {}
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        for value in vars(importlib.import_module(entry.name)).values():
            if isinstance(value, CpuLowering):
                by_op.update(dict.fromkeys(value.ops, value))
    return by_op
