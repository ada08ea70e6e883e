"""Products of weights with many rows of activations: tiles in shared memory, tiles of sums in registers.

A workgroup makes TILE_ROWS x TILE_COLUMNS results. For UNITS units of the rows at a time it unpacks the
weights to shared memory, with the activations that they meet beside them; each invocation then multiplies.
Knows nothing of graphs.
"""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.elementwise import formulas
from graphml_gpu.kernels.weight_rows import WeightRowFormat, place, quad_of, row_bytes, unpacked
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    Update,
    barrier,
    f32,
    f32x4,
    function,
    group_id,
    kernel,
    local_id,
    private_array,
    select,
    shared_array,
    u32,
    unroll,
)


def padded(columns: int) -> int:
    """What the rows of a tile of activations lie apart: neighbours store to other banks of shared memory."""
    return columns + 1


@function
def load_weights(
    w: Read[u32], table: Read[u32], tile: Array[f32], begin: u32, row: u32, n: u32, unit: u32, k: u32,
    FORMAT: WeightRowFormat, GROUP: int, TILE_ROWS: int, UNITS: int,
) -> None:  # fmt: skip
    """Units `unit` and on of rows `row` and on to tile [UNITS * 16, TILE_ROWS]; begin: the matrix's byte."""
    last = (k + 15) // 16 - 1
    for task in range(local_id(0), TILE_ROWS * UNITS, GROUP):
        here, which = task % TILE_ROWS, task // TILE_ROWS
        start = begin + min(row + here, n - 1) * row_bytes(k, FORMAT.name)
        quads = unpacked(w, table, start, min(unit + which, last), k, FORMAT)
        for quad in unroll(4):
            for lane in unroll(4):
                tile[(which * 16 + quad * 4 + lane) * TILE_ROWS + here] = quads[quad][lane]


@function
def load_quad(
    x: Any, tile: Array[f32], start: u32, here: u32, slot: u32, unit: u32, k: u32,
    FORMAT: WeightRowFormat, ELEMENT: Any, STRIDE: int,
) -> None:  # fmt: skip
    """Quad `slot` of column `here` of the tile, whose rows lie STRIDE apart; zero beyond the last unit.

    start: the element that the row of activations begins with.
    """
    mine = unit + (slot >> 2)
    last = (k + 15) // 16 - 1
    four = quad_of(x, start, place(min(mine, last), slot & 3, FORMAT.name), k, FORMAT.even, ELEMENT)
    kept = select(mine <= last, four, f32x4(0.0))
    for lane in unroll(4):
        tile[(slot * 4 + lane) * STRIDE + here] = kept[lane]


@function
def multiply(
    weights: Array[f32], activations: Array[f32], sums: Array[f32],
    DEPTH: int, GROUP: int, ACROSS: int, TILE_ROWS: int, TILE_COLUMNS: int,
) -> None:  # fmt: skip
    """Add the tiles' product to an invocation's sums, ACROSS rows and GROUP // ACROSS columns apart."""
    down = GROUP // ACROSS
    a = private_array(f32, TILE_ROWS // ACROSS)
    across, along = local_id(0) % ACROSS, local_id(0) // ACROSS
    for depth in range(0, DEPTH):
        for i in unroll(TILE_ROWS // ACROSS):
            a[i] = weights[depth * TILE_ROWS + across + i * ACROSS]
        for j in unroll(TILE_COLUMNS // down):
            b = activations[depth * padded(TILE_COLUMNS) + along + j * down]
            for i in unroll(TILE_ROWS // ACROSS):
                sums[j * (TILE_ROWS // ACROSS) + i] += a[i] * b


@function
def store_tile(
    sums: Array[f32], bias: Read[f32], residual: Read[f32], y: Any, row: u32, column: u32, n: u32,
    columns: u32, first: u32, stride: u32, GROUP: int, ACROSS: int, TILE_ROWS: int, TILE_COLUMNS: int,
    BIAS: bool, RESIDUAL: bool, GLU: str,
) -> None:  # fmt: skip
    """Write an invocation's sums, as far as they are within the matrix, with what is added to them."""
    down = GROUP // ACROSS
    tall = TILE_ROWS // ACROSS
    for j in unroll(TILE_COLUMNS // down):
        for i in unroll(tall):
            here = row + local_id(0) % ACROSS + i * ACROSS
            there = column + local_id(0) // ACROSS + j * down
            if here < n and there < columns:
                at = there * stride + first + here
                total = sums[j * tall + i]
                if BIAS:
                    total += bias[first + here]
                if RESIDUAL:
                    total += residual[at]
                if GLU != "":
                    total = formulas.GLU[GLU](y[at], total)
                y[at] = total


def make_mat_mul(ELEMENT: Any) -> Kernel:
    """The kernel for activations in a buffer of f32 or, in rows of a multiple of four, of f32x4."""

    @kernel
    def mat_mul(
        w: Read[u32], table: Read[u32], x: Read[ELEMENT], bias: Read[f32], residual: Read[f32],
        y: Update[f32], n: u32, k: u32, columns: u32, first: u32, stride: u32,
        *, FORMAT: str, ALIGN: int, EVEN: bool = True, GROUP: int = 128, ACROSS: int = 16,
        TILE_ROWS: int = 64, TILE_COLUMNS: int = 64, UNITS: int = 2, BIAS: bool = False,
        RESIDUAL: bool = False, GLU: str = "",
    ) -> None:  # fmt: skip
        """Rows `first` and on of a matrix of `stride`, w [n, k]: y [columns, stride] = w x + bias + residual.

        x [columns, k], bias [stride], residual as y. GLU: what y holds is a gate's product, and the result
        goes through that gate. Groups: tiles of rows, tiles of columns.
        """
        form = WeightRowFormat(FORMAT, ALIGN, EVEN)
        row, column = group_id(0) * TILE_ROWS, group_id(1) * TILE_COLUMNS
        weights = shared_array(f32, UNITS * 16 * TILE_ROWS)
        stride_x = padded(TILE_COLUMNS)
        activations = shared_array(f32, UNITS * 16 * stride_x)
        tall, wide = TILE_ROWS // ACROSS, TILE_COLUMNS // (GROUP // ACROSS)
        sums = private_array(f32, tall * wide)
        for i in unroll(tall * wide):
            sums[i] = 0.0
        for unit in range(0, (k + 15) // 16, UNITS):
            load_weights(w, table, weights, u32(0), row, n, unit, k, form, GROUP, TILE_ROWS, UNITS)
            for task in range(local_id(0), TILE_COLUMNS * UNITS * 4, GROUP):
                slot, here = task % (UNITS * 4), task // (UNITS * 4)
                start = min(column + here, columns - 1) * k
                load_quad(x, activations, start, here, slot, unit, k, form, ELEMENT, stride_x)
            barrier()
            multiply(weights, activations, sums, UNITS * 16, GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS)
            barrier()
        store_tile(
            sums, bias, residual, y, row, column, n, columns, first, stride,
            GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS, BIAS, RESIDUAL, GLU,
        )  # fmt: skip

    return mat_mul


MAT_MUL = {"f32x4": make_mat_mul(f32x4), "f32": make_mat_mul(f32)}
"""By how rows of activations are read: as f32x4 where they have a multiple of four elements."""
