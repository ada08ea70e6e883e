"""A llama whose feed-forward is rotated by a Hadamard matrix and back (QuaRot, arXiv:2404.00456)."""

import numpy as np
from graphml_models import llama
from graphml_models.llama import Config

from graphml.ir.ops.elementwise import mul, silu
from graphml.ops import ROWS, ShapeError, f32, fused, op, sample

__all__ = ["Config", "build"]


def of_a_power_of_two(x):
    if x.shape[-1] & (x.shape[-1] - 1):
        raise ShapeError(f"wanted rows of a power of two; got {x}")
    return x


@op(
    shape=of_a_power_of_two,
    samples=[*(sample(f32(ROWS, n)) for n in (1, 2, 64, 256)), sample(f32(ROWS, 3, 32))],
    inplace=["x"],
    rowwise=["x"],
    paper="arXiv:2404.00456",
)
def hadamard(x):
    """x H / sqrt(n) over the last dimension, with H the Hadamard matrix in Sylvester's order."""
    y, n, step = x.astype(np.float64), x.shape[-1], 1
    while step < n:
        pairs = y.reshape(*x.shape[:-1], n // (2 * step), 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([a + b, a - b], -2).reshape(x.shape)
        step *= 2
    return y / np.sqrt(n)


def rotate(out, row):
    """One row of out in place, without the factor."""
    n, step = out.shape[1], 1
    while step < n:
        for first in range(0, n, 2 * step):
            for i in range(first, first + step):
                a, b = out[row, i], out[row, i + step]
                out[row, i], out[row, i + step] = a + b, a - b
        step *= 2


@hadamard.kernel("cpu", "numba")
def hadamard_rows(out, x, begin, end):
    factor = np.float32(1) / np.sqrt(np.float32(x.shape[1]))
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * factor
        rotate(out, row)


@fused(find=lambda gate, up: hadamard(mul(silu(gate), up)), samples=[sample(f32(ROWS, 64), f32(ROWS, 64))])
def swiglu_hadamard(g, gate, up):
    """hadamard(silu(gate) * up)."""
    return g.hadamard(g.mul(g.silu(gate), up))


@swiglu_hadamard.kernel("cpu", "numba")
def swiglu_hadamard_rows(out, gate, up, begin, end):
    factor = np.float32(1) / np.sqrt(np.float32(out.shape[1]))
    for row in range(begin, end):
        for i in range(out.shape[1]):
            x = gate[row, i]
            out[row, i] = x / (np.float32(1) + np.exp(-x)) * up[row, i] * factor
        rotate(out, row)


def feed_forward(g, config, layer, x):
    gate, up = layer.linear(x, "ffn_gate", "gate"), layer.linear(x, "ffn_up", "up")
    rotated = g.hadamard(g.mul(g.silu(gate), up), name="rotated")
    return layer.linear(g.hadamard(rotated, name="back"), "ffn_down", "down")


def build(g, config, weights):
    return llama.build(g, config, weights, feed_forward=feed_forward)
