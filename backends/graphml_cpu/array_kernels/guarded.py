"""Runs a kernel of rows in Python, uncompiled, on parts of its rows: what it touches outside of them.

An index out of bounds and a change of an operand end in an error with its line; a row that another thread
computes has to stay as it was. Whatever else Python raises says nothing of compiled code: Python has no
numba types, and its `math` has errors where numba has NaN. Knows nodes and arrays; nothing of numba.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml_cpu.array_kernels.reference import ROWS, ArrayKernelRef, dim_slot
from graphml_cpu.lowering.step import KernelCall, RowCount

_UNTOUCHED = np.uint8(0xA5)
_VERDICTS = "out of bounds", "read-only"  # NumPy's words


def outside_its_rows(
    node: Node, step: KernelCall, operands: Mapping[Node, Array], dims: Mapping[str, int]
) -> str:
    """What the kernel of a step does outside of its rows; "" for nothing. operands: of the node, by node."""
    kernel = step.kernel
    assert isinstance(kernel, ArrayKernelRef)
    n_rows = _size(step.arguments[ROWS], dims)
    for begin, end in dict.fromkeys(((0, 1), (n_rows // 2, n_rows), (n_rows - 1, n_rows), (0, n_rows))):
        arrays = {slot.name: _array(step, slot.name, operands, dims) for slot in kernel.arrays}
        for name, array in arrays.items():
            if name in step.writes:
                array.view(np.uint8)[...] = _UNTOUCHED
            else:
                array.flags.writeable = False
        numbers = {name: np.float32(step.arguments[name]) for name in kernel.numbers}  # type: ignore[arg-type]
        function = getattr(kernel.function, "py_func", kernel.function)
        which = f"rows {begin} to {end} of {n_rows}"
        try:
            with np.errstate(all="ignore"):
                function(*arrays.values(), begin, end, **numbers, **dict(kernel.constants))
        except Exception as error:
            if not any(text in str(error) for text in _VERDICTS):
                continue
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return f"{which}: {frame.filename}:{frame.lineno}: {error}"
        for name in step.writes:
            problem = _changed(arrays[name], begin, end, n_rows)
            if problem:
                return f"{which}: wrote out of bounds: {problem} of {name}, which another thread computes"
    return ""


def _size(argument: Any, dims: Mapping[str, int]) -> int:
    rows = argument if isinstance(argument, RowCount) else RowCount(None, int(argument))
    return rows.factor * (dims[rows.symbol] if rows.symbol else 1)


def _array(step: KernelCall, name: str, operands: Mapping[Node, Array], dims: Mapping[str, int]) -> Array:
    """A copy of an operand, or memory for a result, in the shape that the kernel sees."""
    value = step.arguments[name]
    assert isinstance(step.kernel, ArrayKernelRef)
    (slot,) = (candidate for candidate in step.kernel.arrays if candidate.name == name)
    shape = tuple(_size(step.arguments[dim_slot(name, i)], dims) for i in range(slot.n_dims))
    if name in step.writes:
        return np.empty(shape, slot.dtype)
    assert isinstance(value, Node)
    array = np.array(operands[value])
    return (array.view(slot.dtype) if array.dtype == np.float16 else array.astype(slot.dtype)).reshape(shape)


def _changed(array: Array, begin: int, end: int, n_rows: int) -> str:
    if len(array) != n_rows:  # not seen by rows
        return ""
    touched = (array.view(np.uint8).reshape(n_rows, -1) != _UNTOUCHED).any(1)
    touched[begin:end] = False
    rows = np.flatnonzero(touched)
    return f"row {rows[0]}" if rows.size else ""
