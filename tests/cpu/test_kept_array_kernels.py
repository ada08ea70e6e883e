"""Kernels over arrays that one process compiled are run by another, with those of a third."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_cpu.array_kernels.reference import ArrayKernelRef, ArraySlot

numba_compiler = pytest.importorskip("graphml_cpu.array_kernels.numba_compiler")

# Compiles or loads fillers of an array with a number each, and runs them. All are closures of one name.
FILLERS = """
import ctypes
import sys
import numba
import numpy as np
from graphml_cpu.array_kernels.numba_compiler import compile_array_kernels
from graphml_cpu.array_kernels.reference import RAISED, ROWS, ArrayKernelRef, ArraySlot

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
    out, n, word = np.zeros(3, np.int64), np.array([3]), np.zeros(1, np.int64)
    slots = {"out": out.ctypes.data, "out.0": n.ctypes.data, ROWS: n.ctypes.data, RAISED: word.ctypes.data}
    block = kernel.block(**slots)
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


LARGE, SMALL = np.arange(400_000, dtype=np.float32), np.arange(16, dtype=np.float32)
STRIDED = np.arange(64, dtype=np.float32)[::2]


def of_large(out: Any, begin: int, end: int) -> None:
    for i in range(begin, end):
        out[i] = LARGE[i]


def of_strided(out: Any, begin: int, end: int) -> None:
    for i in range(begin, end):
        out[i] = STRIDED[i]


def of_a_call(out: Any, begin: int, end: int) -> None:
    of_strided(out, begin, end)


def of_small(out: Any, begin: int, end: int) -> None:
    for i in range(begin, end):
        out[i] = SMALL[i]


@pytest.mark.parametrize(
    ("function", "is_kept"), [(of_large, False), (of_strided, False), (of_a_call, False), (of_small, True)]
)
def test_code_with_the_address_of_an_array_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, is_kept: bool
) -> None:
    """In another process there is something else."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path))
    monkeypatch.setattr(numba_compiler, "_loaded", {})
    numba_compiler.compile_array_kernels(
        [ArrayKernelRef(function.__name__, function, (ArraySlot("out", "float32", 1),))]
    )
    assert bool(list(tmp_path.rglob("*.kernel"))) == is_kept
