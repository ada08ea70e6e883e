"""Linear attention and the gated delta rule, see `graphml.ir.ops.linear_attention`.

The state of a head is a matrix S [V, K], and each of its rows depends on itself alone: threads share the rows
of all heads, and take the tokens of the step one after the other. Zeros for a token of a sequence that the
state does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import array_step, as_stored, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml.ir.op import number
from graphml.ir.ops.attention import alibi_slopes
from graphml.ir.ops.linear_attention import n_updates
from graphml.ir.shape import fixed
from graphml_numba.helpers import F32, Array, Number, helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.running_softmax import dot

Maker = Callable[..., Callable[..., Any]]


@helper
def decay_row(row: Array, decay: Array) -> None:
    """Row *= decay: a number for each element, or one for all."""
    each = decay.shape[0] > 1
    for i in range(row.shape[0]):
        row[i] *= decay[i] if each else decay[0]


@helper
def add_scaled(row: Array, x: Array, factor: Number) -> None:
    """Row += factor * x."""
    for i in range(row.shape[0]):
        row[i] += factor * x[i]


def call_delta(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of the kernel of `gated_delta_net`."""
    names = ("state", "q", "k", "v", "decay", "beta", "sequences", "positions")
    arrays = {name: as_stored(value) for name, value in zip(names, node.inputs, strict=True)}
    for name, value in zip(("k", "v", "beta"), (node.inputs[i] for i in (2, 3, 5)), strict=True):
        tokens, *rest = value.shape
        arrays[name] = as_stored(value, (tokens, n_updates(node.inputs[2].type), *rest[-2:]))
    attributes = {"scale": number(node.attributes, "scale"), "grouped": bool(node.attributes["grouped"])}
    rows = joined(node.shape[1:], node.name)
    return array_step(
        function, {"out": as_stored(node), **arrays}, rows, writes=("out", "state"), attributes=attributes
    )


@kernel_of("gated_delta_net", call=call_delta, refuses=lambda node: None)
def gated_delta_net(
    out: Array, state: Array, q: Array, k: Array, v: Array, decay: Array, beta: Array, sequences: Array,
    positions: Array, begin: int, end: int, scale: Number, grouped: bool,
) -> None:  # fmt: skip
    """S *= decay; S += beta * (v - S k) k^T; out = scale * S q.

    k [T, U, G, K], v [T, U, N, V], beta [T, U, N, 1]: the second is done U times in each token.
    """
    n_head, n_group, width = v.shape[2], q.shape[1], v.shape[3]
    for unit in range(begin, end):
        head, i = unit // width, unit % width
        group = head // (n_head // n_group) if grouped else head % n_group
        for t in range(q.shape[0]):
            if not 0 <= sequences[t] < state.shape[0]:
                out[t, head, i] = F32(0)
                continue
            row = state[sequences[t], head, i]
            if positions[t] == 0:
                row[:] = F32(0)
            decay_row(row, decay[t, head])
            for u in range(k.shape[1]):
                wrong = v[t, u, head, i] - dot(row, k[t, u, group])
                add_scaled(row, k[t, u, group], beta[t, u, head, 0] * wrong)
            out[t, head, i] = scale * dot(row, q[t, group])


def call_linear_attention(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `linear_attention`. Missing gates are k, unread."""
    state, q, k, v, sequences, positions, *gates = node.inputs
    arrays = {
        "out": as_stored(node),
        "state": as_stored(state),
        **{name: as_stored(value) for name, value in zip("qkv", (q, k, v), strict=True)},
        "sequences": as_stored(sequences),
        "positions": as_stored(positions),
    }
    for i, name in enumerate(("decay", "remove", "replace")):
        arrays[name] = as_stored(gates[i] if i < len(gates) else k)
    slope = None if gates else number(node.attributes, "slope")
    kernel = make(fixed(v.shape[1]), slope, len(gates) > 1, bool(node.attributes["before"]))
    attributes = {"scale": number(node.attributes, "scale")}
    rows = joined(node.shape[1:], node.name)
    return array_step(kernel, arrays, rows, writes=("out", "state"), attributes=attributes)


@kernel_of("linear_attention", call=call_linear_attention, refuses=lambda node: None)
@functools.cache
def linear_attention(n_head: int, slope: float | None, replaces: bool, before: bool) -> Callable[..., Any]:
    """S = S * decay + (S remove) replace^T + v k^T; out = scale * S q, of the S before if `before`.

    slope: without a decay, it is exp(-slope * ALiBi's slope of the head).
    """
    has_fading = slope is not None
    fading = np.exp(-(slope or 0.0) * alibi_slopes(n_head, 8.0)).astype(np.float32).reshape(n_head, 1)

    def kernel(
        out: Array, state: Array, q: Array, k: Array, v: Array, sequences: Array, positions: Array,
        decay: Array, remove: Array, replace: Array, begin: int, end: int, scale: Number,
    ) -> None:  # fmt: skip
        width = v.shape[2]
        for unit in range(begin, end):
            head, i = unit // width, unit % width
            for t in range(q.shape[0]):
                if not 0 <= sequences[t] < state.shape[0]:
                    out[t, head, i] = F32(0)
                    continue
                row = state[sequences[t], head, i]
                if positions[t] == 0:
                    row[:] = F32(0)
                value = v[t, head, i]
                if before:
                    out[t, head, i] = scale * dot(row, q[t, head])
                removed = dot(row, remove[t, head]) if replaces else F32(0)
                decay_row(row, fading[head] if has_fading else decay[t, head])
                if replaces:
                    add_scaled(row, replace[t, head], removed)
                add_scaled(row, k[t, head], value)
                if not before:
                    out[t, head, i] = scale * dot(row, q[t, head])

    return kernel
