"""Graph nodes -> dispatches, one file a family. `table()` finds every `Lowering` value by itself.

Knows which kernel does what; knows nothing of buffers, drivers or the order of steps (see `program.py`).
How to write one stands in `graphml_gpu.dispatch`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from graphml_gpu.dispatch import Lowering


@functools.cache
def table() -> Mapping[str, Lowering]:
    """Op name -> lowering."""
    found: dict[str, Lowering] = {}
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        for value in vars(importlib.import_module(entry.name)).values():
            if isinstance(value, Lowering):
                found.update(dict.fromkeys(value.ops, value))
    return found
