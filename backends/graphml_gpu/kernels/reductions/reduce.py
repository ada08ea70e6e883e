"""Sums, extremes, running sums and softmax of rows, a workgroup a row, and means over rows."""

from __future__ import annotations

import math

from graphml_gpu.kernels.grid import element_number, group_number
from graphml_gpu.language import (
    Read,
    Write,
    barrier,
    exp,
    f32,
    group_max,
    group_sum,
    i32,
    isnan,
    kernel,
    local_id,
    select,
    shared_array,
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
def extreme_rows(
    x: Read[f32], out: Write[f32], rows: u32, n: u32, *, SIGN: float = 1.0, GROUP: int = 64
) -> None:
    """out[row] = the largest number of x[row]; SIGN -1: the smallest. NaN where there is one.

    x [rows, n]; out [rows]. NaN are added up apart, since a maximum may lose them.
    """
    row = group_number()
    if row < rows:
        top, wrong = f32(-math.inf), f32(0.0)
        for i in range(local_id(0), n, GROUP):
            number = x[row * n + i]
            wrong = select(isnan(number), number, wrong)
            top = select(isnan(number), top, max(top, SIGN * number))
        highest, lost = group_max(top), group_sum(wrong)
        if local_id(0) == 0:
            out[row] = select(isnan(lost), lost, SIGN * highest)


@kernel
def cumsum(x: Read[f32], out: Write[f32], rows: u32, n: u32, *, GROUP: int = 64) -> None:
    """out[row, i] = x[row, 0] + ... + x[row, i]. x, out [rows, n]; out may be x.

    Each invocation adds up neighbours, after it the sums of the invocations before it.
    """
    totals = shared_array(f32, GROUP)
    row, me = group_number(), local_id(0)
    each = (n + GROUP - 1) // GROUP
    start = row * n
    first, last = min(me * each, n), min(me * each + each, n)
    if row < rows:
        total = f32(0.0)
        for i in range(first, last):
            total += x[start + i]
        totals[me] = total
        barrier()
        before = f32(0.0)
        for other in range(me):
            before += totals[other]
        for i in range(first, last):
            before += x[start + i]
            out[start + i] = before


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
