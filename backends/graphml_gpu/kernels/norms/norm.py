"""Norms of rows, with the sum before them and the weight and bias after them. A workgroup a row."""

from __future__ import annotations

from graphml_gpu.kernels.grid import group_number
from graphml_gpu.language import (
    Read,
    Write,
    f32,
    function,
    group_sum,
    isnan,
    kernel,
    local_id,
    select,
    sqrt,
    u32,
)


@function
def _row_sum(x: Read[f32], start: u32, n: u32, GROUP: int) -> f32:
    total = f32(0.0)
    for i in range(local_id(0), n, GROUP):
        total += x[start + i]
    return group_sum(total)


@function
def _row_squares(x: Read[f32], start: u32, n: u32, mean: f32, GROUP: int) -> f32:
    """The sum of (x - mean)^2."""
    total = f32(0.0)
    for i in range(local_id(0), n, GROUP):
        centred = x[start + i] - mean
        total += centred * centred
    return group_sum(total)


@kernel
def norm(
    x: Read[f32], weight: Read[f32], bias: Read[f32], out: Write[f32], rows: u32, n: u32, eps: f32,
    *, KIND: str = "rms", WEIGHT: bool = False, BIAS: bool = False, GROUP: int = 64,
) -> None:  # fmt: skip
    """out = (x - mean) / length * weight + bias. x, out [rows, n]; weight, bias [n]; out may be x.

    KIND: "rms" (no mean; length: root of the mean square + eps), "layer" (the same, of x - mean) or "l2" (no
    mean; length: root of the sum of squares, at least eps).
    """
    row = group_number()
    if row < rows:
        start = row * n
        mean = f32(0.0)
        if KIND == "layer":
            mean = _row_sum(x, start, n, GROUP) / f32(n)
        squares = _row_squares(x, start, n, mean, GROUP)
        length = sqrt(squares)
        if KIND == "l2":
            length = select(isnan(length), length, select(length > eps, length, eps))
        else:
            length = sqrt(squares / f32(n) + eps)
        for i in range(local_id(0), n, GROUP):
            value = (x[start + i] - mean) / length
            if WEIGHT:
                value = value * weight[i]
            if BIAS:
                value = value + bias[i]
            out[start + i] = value


@kernel
def add_rms_norm(
    x: Read[f32], y: Read[f32], weight: Read[f32], total: Write[f32], out: Write[f32],
    rows: u32, n: u32, eps: f32, *, GROUP: int = 64,
) -> None:  # fmt: skip
    """total = x + y, out = rms_norm(total) * weight. All [rows, n] but weight [n]; total may be x or y."""
    row = group_number()
    if row < rows:
        start = row * n
        squares = f32(0.0)
        for i in range(local_id(0), n, GROUP):
            value = x[start + i] + y[start + i]
            squares += value * value
        scale = sqrt(group_sum(squares) / f32(n) + eps)
        for i in range(local_id(0), n, GROUP):
            # Added again rather than read back: the sum may lie where x or y does.
            value = x[start + i] + y[start + i]
            total[start + i] = value
            out[start + i] = value / scale * weight[i]
