"""Norms of rows held in registers: each row is read once, four numbers at a time. A workgroup a row.

For rows of a multiple of four that fit; `norm` takes all others, and suits processors. Results are float32,
or of 8 bits as `int8_rows` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphml_gpu.kernels.grid import group_number
from graphml_gpu.kernels.products.int8_quads import store_quad
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    Write,
    dot,
    f32,
    f32x4,
    function,
    group_sum,
    isnan,
    kernel,
    local_id,
    private_array,
    select,
    sqrt,
    u32,
    unroll,
)


@dataclass(frozen=True)
class HeldRow:
    """How a workgroup of `group` invocations holds a row: `each` quads of an invocation, `group` apart."""

    group: int
    each: int


@function
def quads_of(x: Read[f32x4], begin: u32, quads: u32, HELD: HeldRow) -> Array[f32x4]:
    """An invocation's quads of a row that begins at quad `begin`; beyond its end zeros."""
    values = private_array(f32x4, HELD.each)
    for i in unroll(HELD.each):
        at = local_id(0) + i * HELD.group
        values[i] = f32x4(0.0)
        if at < quads:
            values[i] = x[begin + at]
    return values


@function
def centre(values: Array[f32x4], quads: u32, n: u32, HELD: HeldRow) -> None:
    """Take the row's mean from its numbers; beyond its end stay zeros."""
    total = f32(0.0)
    for i in unroll(HELD.each):
        total += dot(values[i], f32x4(1.0))
    mean = group_sum(total) / f32(n)
    for i in unroll(HELD.each):
        if local_id(0) + i * HELD.group < quads:
            values[i] = values[i] - mean


@function
def squares_of(values: Array[f32x4], HELD: HeldRow) -> f32:
    """The sum of the squares of a row."""
    total = f32(0.0)
    for i in unroll(HELD.each):
        total += dot(values[i], values[i])
    return group_sum(total)


@function
def store_quads(out: Any, begin: u32, quads: u32, values: Array[f32x4], HELD: HeldRow) -> None:
    """Write a row that begins at quad `begin`."""
    for i in unroll(HELD.each):
        at = local_id(0) + i * HELD.group
        if at < quads:
            out[begin + at] = values[i]


@function
def store_result(
    out: Any, row: u32, quads: u32, end: u32, values: Array[f32x4], HELD: HeldRow, ELEMENT: Any
) -> None:
    """Write a row number up to quad `end`, converted where the buffer is one of words. All must call it."""
    if ELEMENT is u32:
        for i in unroll(HELD.each):
            at = local_id(0) + i * HELD.group
            store_quad(out, row, at, quads, values[i], at < end)
    else:
        store_quads(out, row * quads, end, values, HELD)


@function
def stored_quads(row: u32, rows: u32, quads: u32) -> u32:
    """How many quads of a row there are: none beyond the last row.

    No condition on the row stands around barriers: PoCL then loses what is stored under another one.
    """
    return select(row < rows, quads, u32(0))


def make_row_norm(ELEMENT: Any) -> Kernel:
    """The kernel for results in a buffer of f32x4 or of words."""

    @kernel
    def row_norm(
        x: Read[f32x4], weight: Read[f32x4], bias: Read[f32x4], out: Write[ELEMENT],
        rows: u32, n: u32, eps: f32,
        *, KIND: str = "rms", WEIGHT: bool = False, BIAS: bool = False, EACH: int = 1, GROUP: int = 64,
    ) -> None:  # fmt: skip
        """As `norm`; EACH: quads of an invocation."""
        held, row, quads = HeldRow(GROUP, EACH), group_number(), n // 4
        end = stored_quads(row, rows, quads)
        values = quads_of(x, row * quads, end, held)
        # Read before the sums, so that nothing is waited for after them.
        if WEIGHT:
            weights = quads_of(weight, u32(0), quads, held)
        if BIAS:
            biases = quads_of(bias, u32(0), quads, held)
        if KIND == "layer":
            centre(values, end, n, held)
        squares = squares_of(values, held)
        length = sqrt(squares)
        if KIND == "l2":
            length = select(isnan(length), length, select(length > eps, length, eps))
        else:
            length = sqrt(squares / f32(n) + eps)
        for i in unroll(EACH):
            values[i] = values[i] / length
            if WEIGHT:
                values[i] = values[i] * weights[i]
            if BIAS:
                values[i] = values[i] + biases[i]
        store_result(out, row, quads, end, values, held, ELEMENT)

    return row_norm


def make_add_row_norm(ELEMENT: Any) -> Kernel:
    """The same with a sum before it, which is float32."""

    @kernel
    def add_row_norm(
        x: Read[f32x4], y: Read[f32x4], weight: Read[f32x4], total: Write[f32x4], out: Write[ELEMENT],
        rows: u32, n: u32, eps: f32, *, EACH: int = 1, GROUP: int = 64,
    ) -> None:  # fmt: skip
        """As `add_rms_norm`; EACH: quads of an invocation."""
        held, row, quads = HeldRow(GROUP, EACH), group_number(), n // 4
        end = stored_quads(row, rows, quads)
        values = quads_of(x, row * quads, end, held)
        others = quads_of(y, row * quads, end, held)
        weights = quads_of(weight, u32(0), quads, held)
        for i in unroll(EACH):
            values[i] = values[i] + others[i]
        store_quads(total, row * quads, end, values, held)
        length = sqrt(squares_of(values, held) / f32(n) + eps)
        for i in unroll(EACH):
            values[i] = values[i] / length * weights[i]
        store_result(out, row, quads, end, values, held, ELEMENT)

    return add_row_norm


ROW_NORM = {"f32": make_row_norm(f32x4), "q8_1": make_row_norm(u32)}
ADD_ROW_NORM = {"f32": make_add_row_norm(f32x4), "q8_1": make_add_row_norm(u32)}
"""Dtype of the norm -> kernel."""
