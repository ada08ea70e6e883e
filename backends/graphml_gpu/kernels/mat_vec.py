"""Products of weights with few rows of activations: each weight is unpacked once, in registers.

A workgroup has GROUP invocations; LANES of them share a row of weights, unit by unit, and sum up at the end
(one lane: no exchange at all, which suits devices that are processors). Each such team works at ROWS rows,
GROUP // LANES rows apart, so that activations are read once for all of them. Knows nothing of graphs.
"""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.rows import place, quad_of, row_bytes, unpacked
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    Write,
    cluster_sum,
    dot,
    f32,
    f32x4,
    function,
    group_id,
    group_sum,
    kernel,
    local_id,
    num_groups,
    private_array,
    u32,
    unroll,
)


@function
def rows_times_columns(
    w: Read[u32],
    table: Read[u32],
    x: Any,
    first_row: u32,
    n: u32,
    k: u32,
    columns: u32,
    FORMAT: str,
    ALIGN: int,
    EVEN: bool,
    ELEMENT: Any,
    GROUP: int,
    LANES: int,
    ROWS: int,
    COLUMNS: int,
) -> Array[f32]:
    """Sums of rows first_row + r * TEAMS of w [n, k] with rows of x [columns, k]: [ROWS * COLUMNS]."""
    teams = GROUP // LANES
    lane = local_id(0) % LANES
    sums = private_array(f32, ROWS * COLUMNS)
    for i in unroll(ROWS * COLUMNS):
        sums[i] = 0.0
    values = private_array(f32x4, ROWS * 4)
    stride = row_bytes(k, FORMAT)
    for unit in range(lane, (k + 15) // 16, LANES):
        for r in unroll(ROWS):
            row = min(first_row + r * teams, n - 1) * stride
            a, b, c, d = unpacked(w, table, row, unit, k, FORMAT, ALIGN, EVEN)
            values[4 * r] = a
            values[4 * r + 1] = b
            values[4 * r + 2] = c
            values[4 * r + 3] = d
        for column in unroll(COLUMNS):
            start = k * min(column, columns - 1)
            for quad in unroll(4):
                four = quad_of(x, start, place(unit, quad, FORMAT), k, EVEN, ELEMENT)
                for r in unroll(ROWS):
                    sums[r * COLUMNS + column] += dot(values[4 * r + quad], four)
    for i in unroll(ROWS * COLUMNS):
        if LANES == GROUP:
            sums[i] = group_sum(sums[i])
        else:
            sums[i] = cluster_sum(sums[i], LANES)
    return sums


def make(ELEMENT: Any) -> Kernel:
    """The kernel for activations in a buffer of f32 or, in rows of a multiple of four, of f32x4."""

    @kernel
    def mat_vec(
        w: Read[u32],
        table: Read[u32],
        x: Read[ELEMENT],  # type: ignore[valid-type]
        bias: Read[f32],
        residual: Read[f32],
        y: Write[f32],
        n: u32,
        k: u32,
        columns: u32,
        first: u32,
        stride: u32,
        *,
        FORMAT: str,
        ALIGN: int,
        EVEN: bool = True,
        GROUP: int = 64,
        LANES: int = 64,
        ROWS: int = 1,
        COLUMNS: int = 1,
        BIAS: bool = False,
        RESIDUAL: bool = False,
    ) -> None:
        """w [n, k]: rows `first` and on of a matrix of `stride`; y [columns, stride] = w x + bias + residual.

        x [columns, k], columns up to COLUMNS; bias [stride], residual as y.
        """
        teams = GROUP // LANES
        group = group_id(0) + group_id(1) * num_groups(0)
        row = group * (teams * ROWS) + local_id(0) // LANES
        sums = rows_times_columns(
            w, table, x, row, n, k, columns,
            FORMAT, ALIGN, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS,
        )  # fmt: skip
        if local_id(0) % LANES == 0:
            for r in unroll(ROWS):
                for column in unroll(COLUMNS):
                    here = row + r * teams
                    if here < n and column < columns:
                        at = column * stride + first + here
                        total = sums[r * COLUMNS + column]
                        if BIAS:
                            total += bias[first + here]
                        if RESIDUAL:
                            total += residual[at]
                        y[at] = total

    return mat_vec


MAT_VEC = make(f32x4)
MAT_VEC_SINGLE = make(f32)
