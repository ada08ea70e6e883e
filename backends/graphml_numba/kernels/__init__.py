"""The kernels, one file a family. `table()` finds every function that is marked as one by itself."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from graphml_cpu.lowering.step import CpuLowering

from graphml_numba.kernel_of import lowerings_of


@functools.cache
def table() -> Mapping[str, CpuLowering]:
    """Op name -> how a node of it is called."""
    by_op: dict[str, CpuLowering] = {}
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        by_op |= lowerings_of(importlib.import_module(entry.name))
    return by_op
