"""Kernels over arrays that one process compiled are run by another, with those of a third."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

# Compiles or loads fillers of an array with a number each, and runs them. All are closures of one name.
FILLERS = """
import ctypes
import sys
import numba
import numpy as np
from graphml_cpu.array_kernels.numba_compiler import compile_array_kernels
from graphml_cpu.array_kernels.reference import ROWS, ArrayKernelRef, ArraySlot

def made(number):
    @numba.njit
    def each(out, begin, end):
        found = np.zeros(end)
        for i in range(begin, end):
            found[i] = number
        for i in range(begin, end):
            out[i] = found[i]

    def fill(out, begin, end):
        each(out, begin, end)
        each(out, begin, end)
    return fill

numbers = [int(one) for one in sys.argv[1:]]
refs = [ArrayKernelRef("fill", made(number), (ArraySlot("out", "int64", 1),)) for number in numbers]
call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
for ref, kernel in compile_array_kernels(refs).items():
    out, n = np.zeros(3, np.int64), np.array([3])
    block = kernel.block(**{"out": out.ctypes.data, "out.0": n.ctypes.data, ROWS: n.ctypes.data})
    call(kernel.address)(block.ctypes.data, 0, 1)
    print(int(out[2]))
"""


def test_kernels_of_several_processes_do_not_take_each_other_s_names(tmp_path: Path) -> None:
    def told(*numbers: int) -> list[int]:
        command = [sys.executable, "-c", FILLERS, *map(str, numbers)]
        given = {**os.environ, "GRAPHML_CACHE": str(tmp_path)}
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    assert told(1, 2) == [1, 2]
    assert told(3, 4) == [3, 4]
    assert told(5) == [5]
    assert told(1, 3, 2, 5, 4) == [1, 3, 2, 5, 4]
