"""State space models: `ssm_conv` and `ssm_scan`, see `graphml.ir.ops.recurrent` and `graphml.ir.ops.ssm`.

A channel depends on itself alone: threads share the channels, and take the tokens of the step one after the
other. The result may overwrite x: a channel of a token is read before it is written. Zeros for a token of a
sequence that the state does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import array_step, as_stored, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml_numba.helpers import F32, Array, Number, helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.running_softmax import exp

Maker = Callable[..., Callable[..., Any]]


def call_conv(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `ssm_conv` or `ssm_conv_silu`. A missing bias is positions, unread."""
    names = ("state", "x", "weight", "sequences", "positions")
    arrays = {name: as_stored(value) for name, value in zip(names, node.inputs[:5], strict=True)}
    has_bias = len(node.inputs) > 5
    arrays = {"out": as_stored(node), **arrays, "bias": as_stored(node.inputs[5 if has_bias else 4])}
    kernel = make(has_bias, node.op.name == "ssm_conv_silu")
    return array_step(kernel, arrays, joined(node.shape[1:], node.name), writes=("out", "state"))


@kernel_of("ssm_conv", "ssm_conv_silu", call=call_conv, refuses=lambda node: None)
@functools.cache
def ssm_conv(has_bias: bool, has_silu: bool) -> Callable[..., Any]:
    """out = the sum of the last n tokens' x, each times its column of weight [channels, n].

    state [S, n - 1, channels]: the x of the last n - 1 tokens of each sequence.
    """

    def kernel(
        out: Array, state: Array, x: Array, weight: Array, sequences: Array, positions: Array, bias: Array,
        begin: int, end: int,
    ) -> None:  # fmt: skip
        before = weight.shape[1] - 1
        for t in range(x.shape[0]):
            if not 0 <= sequences[t] < state.shape[0]:
                out[t, begin:end] = F32(0)
                continue
            past, now = state[sequences[t]], x[t]
            if positions[t] == 0:
                past[:, begin:end] = F32(0)
            for c in range(begin, end):
                total, newest = F32(0), now[c]
                for i in range(before):
                    total += past[i, c] * weight[c, i]
                total += newest * weight[c, before]
                for i in range(before - 1):
                    past[i, c] = past[i + 1, c]
                past[before - 1, c] = newest
                if has_bias:
                    total += bias[c]
                out[t, c] = total / (F32(1) + exp(-total)) if has_silu else total

    return kernel


def call_scan(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `ssm_scan`."""
    state, x, dt, a, b, c, d, sequences, positions = node.inputs
    names = ("out", "state", "x", "dt", "a", "b", "c", "d", "sequences", "positions")
    values = (node, state, x, dt, a, b, c, d, sequences, positions)
    arrays = {name: as_stored(value) for name, value in zip(names, values, strict=True)}
    kernel = make(a.shape == (state.shape[1], 1))
    return array_step(kernel, arrays, joined(node.shape[1:], node.name), writes=("out", "state"))


@kernel_of("ssm_scan", call=call_scan, refuses=lambda node: None)
@functools.cache
def ssm_scan(by_head: bool) -> Callable[..., Any]:
    """S = exp(step * a) * S + step * x * b; out = S c + d * x, with step = softplus(dt).

    state [S, head, d_state, channels of a head]. by_head: a, d and dt are of heads, not of channels.
    """
    step_of_head = _by_head if by_head else _by_channel

    def kernel(
        out: Array, state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, d: Array,
        sequences: Array, positions: Array, begin: int, end: int,
    ) -> None:  # fmt: skip
        _, n_head, d_state, head_dim = state.shape
        heads = n_head * d_state // b.shape[1]  # of a group, which has its b and c
        sums = np.empty(head_dim, F32)
        for head in range(begin // head_dim, (end + head_dim - 1) // head_dim):
            origin = head * head_dim
            first, last = max(begin, origin), min(end, origin + head_dim)
            at = head // heads * d_state
            for t in range(x.shape[0]):
                if not 0 <= sequences[t] < state.shape[0]:
                    out[t, first:last] = F32(0)
                    continue
                own = state[sequences[t], head, :, first - origin : last - origin]
                if positions[t] == 0:
                    own[:] = F32(0)
                b_now, c_now, sums_now = (
                    b[t, at : at + d_state],
                    c[t, at : at + d_state],
                    sums[: last - first],
                )
                step_of_head(
                    own, x[t, first:last], dt[t], a, b_now, c_now, d, head if by_head else first, sums_now
                )
                out[t, first:last] = sums_now

    return kernel


@helper
def softplus(x: Number) -> Number:
    """log(1 + exp(x))."""
    return (x if x > F32(0) else F32(0)) + np.log1p(exp(-abs(x)))


@helper
def _by_head(
    state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, d: Array, head: int, sums: Array
) -> None:
    """A token of neighbouring channels of a head, with its a, d and dt: sums = the results."""
    step, n = softplus(dt[head]), x.shape[0]
    decay = exp(step * a[head, 0])
    sums[:] = F32(0)
    for i in range(b.shape[0]):
        row, by = state[i], step * b[i]
        for j in range(n):
            row[j] = row[j] * decay + x[j] * by
            sums[j] += row[j] * c[i]
    for j in range(n):
        sums[j] += x[j] * d[head]


@helper
def _by_channel(
    state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, d: Array, first: int, sums: Array
) -> None:
    """A token of the channels from `first` on, each with its a [d_state], d and dt: sums = the results."""
    for j in range(x.shape[0]):
        step, total = softplus(dt[first + j]), F32(0)
        for i in range(b.shape[0]):
            state[i, j] = state[i, j] * exp(step * a[first + j, i]) + x[j] * step * b[i]
            total += state[i, j] * c[i]
        sums[j] = total + x[j] * d[first + j]
