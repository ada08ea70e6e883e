"""Graph nodes -> kernel calls, one file a family. `table()` finds every `Lowering` value by itself.

Knows which kernel does what; knows nothing of addresses, threads or barriers (see `program.py`).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from graphml_cpu.lowering.step import Lowering


@functools.cache
def table() -> Mapping[str, Lowering]:
    """Op name -> lowering."""
    by_op: dict[str, Lowering] = {}
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        for value in vars(importlib.import_module(entry.name)).values():
            if isinstance(value, Lowering):
                by_op.update(dict.fromkeys(value.ops, value))
    return by_op
