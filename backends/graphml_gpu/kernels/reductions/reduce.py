"""Sums and softmax of rows, a workgroup a row, and means over rows."""

from __future__ import annotations

import math

from graphml_gpu.kernels.grid import element_number, group_number
from graphml_gpu.language import (
    Read,
    Write,
    exp,
    f32,
    group_max,
    group_sum,
    i32,
    kernel,
    local_id,
    u32,
)


@kernel
def sum_rows(x: Read[f32], out: Write[f32], rows: u32, n: u32, *, GROUP: int = 64) -> None:
    """out[row] = the sum of x[row]. x [rows, n]; out [rows]."""
    row = group_number()
    if row < rows:
        total = f32(0.0)
        for i in range(local_id(0), n, GROUP):
            total += x[row * n + i]
        whole = group_sum(total)
        if local_id(0) == 0:
            out[row] = whole


@kernel
def softmax(x: Read[f32], out: Write[f32], rows: u32, n: u32, *, GROUP: int = 64) -> None:
    """out[row] = exp(x[row]) / its sum. x, out [rows, n]; out may be x."""
    row = group_number()
    if row < rows:
        start = row * n
        top = f32(-math.inf)
        for i in range(local_id(0), n, GROUP):
            top = max(top, x[start + i])
        highest = group_max(top)
        total = f32(0.0)
        for i in range(local_id(0), n, GROUP):
            total += exp(x[start + i] - highest)
        whole = group_sum(total)
        for i in range(local_id(0), n, GROUP):
            out[start + i] = exp(x[start + i] - highest) / whole


@kernel
def mean_rows(
    x: Read[f32], numbers: Read[i32], sequences: Read[i32], out: Write[f32], count: u32, rows: u32, n: u32,
    tokens: u32, *, GROUP: int = 64,
) -> None:  # fmt: skip
    """out[s] = the mean of the rows of x whose token is of sequence s, 0 where there are none.

    x [rows, n]; numbers [rows]: the rows' tokens, left out where there is none; sequences [tokens];
    out: count elements, [S, n].
    """
    i = element_number()
    if i < count:
        total, used = f32(0.0), u32(0)
        for row in range(rows):
            token = u32(numbers[row])
            if token < tokens and u32(sequences[token]) == i // n:
                total += x[row * n + i % n]
                used += 1
        out[i] = total / f32(max(used, 1))
