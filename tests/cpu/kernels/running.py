"""Run one kernel of `graphml_cpu` on NumPy arrays, on any number of threads, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphml_cpu.compiler import KernelRef, LoadedKernel, compile_kernels

THREADS = (1, 2, 3)


def kernel(module: str, factory: str, *arguments: Any) -> LoadedKernel:
    """The kernel that `graphml_cpu.kernels.<module>.<factory>(*arguments)` makes."""
    name = "-".join([factory, *map(str, arguments)])
    ref = KernelRef(name, f"graphml_cpu.kernels.{module}", factory, arguments)
    return compile_kernels([ref])[name]


def run(made: LoadedKernel, nth: int = 1, **values: Any) -> None:
    """Call `made` once per thread; an array stands for its address, an int for the value of a Dim."""
    kinds = dict(made.parameters)
    kept: list[Any] = []
    slots: dict[str, float] = {}
    for name, value in values.items():
        kept.append(value)
        slot = value.ctypes.data if isinstance(value, np.ndarray) else value
        if kinds[name] in ("dim", "run_address"):
            cell = np.array([slot], np.int64)
            kept.append(cell)
            slot = cell.ctypes.data
        slots[name] = slot
    block = made.block(**slots)
    for ith in range(nth):
        made(block, ith, nth)
