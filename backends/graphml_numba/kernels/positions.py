"""Rotary positions, see `graphml.ir.ops.position`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.step import Constant, Step

from graphml.ir import op
from graphml.ir.dtype import dtype
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.ops.position import frequencies, magnitude
from graphml_numba.helpers import Array
from graphml_numba.kernel_of import kernel_of


def refuses_table(node: Node) -> str | None:
    """Why the frequencies are not known when a program is made."""
    if len(node.inputs) > 1 and node.inputs[1].op is not weight_leaf:
        return f"the factors {node.inputs[1].name} are computed in the graph"
    return None


def call_table(node: Node, function: Callable[..., Any]) -> Step:
    """The call of the kernel of `rope_table`; frequencies are computed once."""

    def angles(weights: Mapping[str, op.Array]) -> op.Array:
        return frequencies(node.attributes, weights[node.inputs[1].name] if len(node.inputs) > 1 else None)

    kind = Type(dtype("f64"), node.shape[1:2])
    arrays = {
        "out": as_stored(node),
        "positions": as_stored(node.inputs[0]),
        "frequencies": ArrayValue(Constant(angles), kind.shape, kind),
    }
    scale = {"scale": float(magnitude(node.attributes))}
    return array_step(
        function, arrays, joined(node.shape[:1], node.name), attributes=scale, name="rope_table"
    )


@kernel_of("rope_table", call=call_table, refuses=refuses_table)
def rope_table(out: Array, positions: Array, frequencies: Array, begin: int, end: int, scale: float) -> None:
    """Cosine and sine of position times frequency; angles in double precision."""
    for token in range(begin, end):
        for i in range(len(frequencies)):
            angle = positions[token] * frequencies[i]
            out[token, i, 0] = math.cos(angle) * scale
            out[token, i, 1] = math.sin(angle) * scale


def call_rope(node: Node, function: Callable[..., Any]) -> Step:
    """The call of the kernel of `rope`: a token is a row."""
    x, table = node.inputs
    arrays = {"out": as_stored(node), "x": as_stored(x), "table": as_stored(table)}
    neox = {"neox": node.attributes["mode"] == "neox"}
    return array_step(function, arrays, joined(node.shape[:1], node.name), attributes=neox, name="rope")


@kernel_of("rope", call=call_rope)
def rope(out: Array, x: Array, table: Array, begin: int, end: int, neox: bool) -> None:
    """Pairs of dimensions of each head rotated: 2i and 2i + 1, or with neox i and i + half."""
    half = table.shape[1]
    for token in range(begin, end):
        for head in range(x.shape[1]):
            for i in range(half):
                a, b = (i, i + half) if neox else (2 * i, 2 * i + 1)
                first, second = x[token, head, a], x[token, head, b]
                cos, sin = table[token, i, 0], table[token, i, 1]
                out[token, head, a] = first * cos - second * sin
                out[token, head, b] = first * sin + second * cos
            for i in range(2 * half, x.shape[2]):
                out[token, head, i] = x[token, head, i]


def call_scale(node: Node, function: Callable[..., Any]) -> Step:
    """The call of the kernel of `position_scale`."""
    names = ("factor", "step", "offset")
    arrays = {"out": as_stored(node), "positions": as_stored(node.inputs[0])}
    given = {name: node.attributes[name] for name in names}
    given["factor"] = op.number(node.attributes, "factor")
    return array_step(
        function, arrays, joined(node.shape[:1], node.name), attributes=given, name=node.op.name
    )


@kernel_of("position_scale", call=call_scale)
def position_scale(
    out: Array, positions: Array, begin: int, end: int, factor: float, step: int, offset: int
) -> None:
    """1 + factor * log(1 + (position + offset) // step)."""
    for token in range(begin, end):
        out[token, 0, 0] = 1.0 + np.float64(factor) * math.log1p((positions[token] + offset) // step)
