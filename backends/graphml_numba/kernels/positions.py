"""Rotary position embedding and scales of positions, see `graphml.ir.ops.position`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml.ir.ops.position import frequencies, magnitude
from graphml_numba.helpers import F32, F64, Array
from graphml_numba.kernel_of import kernel_of

Maker = Callable[..., Callable[..., Any]]


def call_rope_table(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `rope_table`. Missing factors are the positions, unread."""
    positions, *factors = node.inputs
    arrays = {
        "out": as_stored(node),
        "positions": as_stored(positions),
        "factors": as_stored(factors[0]) if factors else ArrayValue(positions, (0,)),
    }
    angles = tuple(frequencies(node.attributes, None).tolist())
    kernel = make(angles, magnitude(node.attributes), bool(factors))
    return array_step(kernel, arrays, joined(node.shape[:1], node.name), name=node.op.name)


@kernel_of("rope_table", call=call_rope_table)
@functools.cache
def rope_table(angles: tuple[float, ...], size: float, has_factors: bool) -> Callable[..., Any]:
    """out [T, n_rot / 2, 2] = the cosine and sine of position * angle / factor, times the size."""
    per_position = np.array(angles)

    def kernel(out: Array, positions: Array, factors: Array, begin: int, end: int) -> None:
        for t in range(begin, end):
            for i in range(per_position.shape[0]):
                angle = positions[t] * per_position[i]
                if has_factors:
                    angle /= F64(factors[i])
                out[t, i, 0] = np.cos(angle) * size
                out[t, i, 1] = np.sin(angle) * size

    return kernel


def call_rope(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of the kernel of `rope`."""
    x, table = node.inputs
    arrays = {"out": as_stored(node), "x": as_stored(x), "table": as_stored(table)}
    attributes = {"interleaved": node.attributes["mode"] == "norm"}
    return array_step(function, arrays, joined(node.shape[:1], node.name), attributes=attributes)


@kernel_of("rope", call=call_rope)
def rope(out: Array, x: Array, table: Array, begin: int, end: int, interleaved: bool) -> None:
    """Rotate each pair of dimensions of each head by its angle; dimensions past n_rot stay as they are.

    Pairs are (0, 1), (2, 3) and so on if interleaved (mode `norm`), else (0, n_rot / 2), (1, n_rot / 2 + 1)
    and so on (mode `neox`).
    """
    half = table.shape[1]
    for t in range(begin, end):
        for head in range(x.shape[1]):
            for i in range(half):
                first = 2 * i if interleaved else i
                second = first + 1 if interleaved else first + half
                a, b = x[t, head, first], x[t, head, second]
                cos, sin = table[t, i, 0], table[t, i, 1]
                out[t, head, first] = a * cos - b * sin
                out[t, head, second] = a * sin + b * cos
            out[t, head, 2 * half :] = x[t, head, 2 * half :]


@kernel_of("position_scale")
def position_scale(
    out: Array, positions: Array, begin: int, end: int, factor: float, step: int, offset: int
) -> None:
    """out = 1 + factor * log(1 + floor((position + offset) / step))."""
    for t in range(begin, end):
        steps = (positions[t] + offset) // step
        out[t, 0] = F32(1.0 + factor * np.log1p(F64(steps)))
