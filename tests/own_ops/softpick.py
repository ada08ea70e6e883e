"""Softpick: a softmax whose shares may be 0 (arXiv:2504.20966), with kernels and a fusion."""

import numpy as np

from graphml.ir.ops.elementwise import mul
from graphml.ops import ROWS, f32, fused, op, sample


@op(
    shape=lambda x: x,
    samples=[sample(f32(ROWS, 64)), sample(f32(ROWS, 7), eps=1e-3), sample(f32(ROWS, 3, 33))],
    inplace=["x"],
    rowwise=["x"],
    paper="arXiv:2504.20966",
)
def softpick(x, *, eps: float = 1e-6):
    """relu(exp(x) - 1) / (sum(abs(exp(x) - 1)) + eps) over the last dimension."""
    x = x.astype(np.float64)
    top = np.maximum(x.max(-1, keepdims=True), 0)
    e = np.exp(x - top) - np.exp(-top)
    return np.maximum(e, 0) / (np.abs(e).sum(-1, keepdims=True) + eps * np.exp(-top))


def picked(out, x, row, eps):
    """One row; kernels may call plain functions."""
    top, total = np.float32(0), np.float32(0)
    for i in range(x.shape[1]):
        top = max(top, x[row, i])
    low = np.exp(-top)
    for i in range(x.shape[1]):
        e = np.exp(x[row, i] - top) - low
        total += abs(e)
        out[row, i] = max(e, np.float32(0))
    factor = np.float32(1) / (total + eps * low)
    for i in range(x.shape[1]):
        out[row, i] *= factor


@softpick.kernel("cpu", "numba")
def softpick_rows(out, x, begin, end, eps):
    for row in range(begin, end):
        picked(out, x, row, eps)


@fused(find=lambda x, y: mul(softpick(x), y), samples=[sample(f32(ROWS, 64), f32(ROWS, 64))])
def softpick_mul(g, x, y, *, eps: float = 1e-6):
    """softpick(x) * y."""
    return g.mul(g.softpick(x, eps=eps), y)


@softpick_mul.kernel("cpu", "numba")
def softpick_mul_rows(out, x, y, begin, end, eps):
    for row in range(begin, end):
        picked(out, x, row, eps)
        for i in range(x.shape[1]):
            out[row, i] *= y[row, i]
