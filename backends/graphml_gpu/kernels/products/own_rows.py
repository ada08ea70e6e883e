"""One row of activations that every workgroup of a product makes for itself, as 8-bit numbers in shared memory.

A product of one row with weights takes less time than it takes to start: a dispatch of its own for a norm,
an activation or the conversion costs more than doing these again in each workgroup. Knows nothing of graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphml_gpu.kernels.elementwise import formulas
from graphml_gpu.kernels.products.int8_rows import PLANES, rounded
from graphml_gpu.language import (
    Array,
    Read,
    Vector,
    barrier,
    bitcast,
    cluster_max,
    cluster_sum,
    dot,
    f32,
    f32x2,
    f32x4,
    function,
    group_sum,
    i32,
    inverse_sqrt,
    isinf,
    isnan,
    local_id,
    pack_half2,
    private_array,
    select,
    shared_array,
    u32,
    unroll,
)

LANES = 8
"""Invocations that make a group of 32: four numbers each, a word of them."""


@dataclass(frozen=True)
class OwnRow:
    """What is made of a row before it is converted, known when compiling.

    kind: "quantize" (nothing), "rms_norm", "layer_norm" or "gelu"; "": the row was made before. shifted:
    whether the norm has a bias. k: elements of the row.
    """

    kind: str
    shifted: bool
    k: int


@function
def row_of(x: Any, scale: Read[f32x4], shift: Read[f32x4], eps: f32, OWN: OwnRow, GROUP: int) -> Any:
    """The rows that are multiplied: x, or one made of it as `OWN` says. All must call it."""
    if OWN.kind == "":
        return x
    row = shared_array(u32, PLANES * OWN.k // 32)
    make_row(x, scale, shift, row, eps, OWN.kind, OWN.shifted, OWN.k, GROUP)
    barrier()
    return row


@function
def make_row(
    x: Read[f32x4], scale: Read[f32x4], shift: Read[f32x4], row: Array[u32], eps: f32,
    OWN: str, SHIFTED: bool, K: int, GROUP: int,
) -> None:  # fmt: skip
    """The K elements of x, changed as OWN says, as a row of `int8_rows`. scale, shift [K], eps: of norms."""
    fours, groups = K // 4, K // 32
    rounds = (fours + GROUP - 1) // GROUP
    values, factors = private_array(f32x4, rounds), private_array(f32x4, rounds)
    for r in unroll(rounds):  # all that is read is asked for before anything waits
        here = min(r * GROUP + local_id(0), fours - 1)
        values[r] = select(r * GROUP + local_id(0) < fours, x[here], f32x4(0.0))
        if OWN in ("rms_norm", "layer_norm"):
            factors[r] = scale[here]
    if OWN == "layer_norm":
        total = f32(0.0)
        for r in unroll(rounds):
            total += dot(values[r], f32x4(1.0))
        mean = group_sum(total) / f32(K)
        for r in unroll(rounds):
            values[r] = select(r * GROUP + local_id(0) < fours, values[r] - f32x4(mean), f32x4(0.0))
    if OWN in ("rms_norm", "layer_norm"):
        squares = f32(0.0)
        for r in unroll(rounds):
            squares += dot(values[r], values[r])
        factor = inverse_sqrt(group_sum(squares) / f32(K) + eps)
        for r in unroll(rounds):
            values[r] = values[r] * factor * factors[r]
            if SHIFTED:
                values[r] += shift[min(r * GROUP + local_id(0), fours - 1)]
    for r in unroll(rounds):
        value = activated(values[r], OWN)
        largest = cluster_max(max(max(abs(value.x), abs(value.y)), max(abs(value.z), abs(value.w))), LANES)
        d = largest / 127.0
        inverted = 1.0 / d
        inverse = f32(0.0) if isnan(inverted) or isinf(inverted) else inverted
        a, b = rounded(value.x * inverse), rounded(value.y * inverse)
        c, e = rounded(value.z * inverse), rounded(value.w * inverse)
        total = cluster_sum(f32(a + b + c + e), LANES)
        i = r * GROUP + local_id(0)
        if i < fours:
            group, lane = i // LANES, i % LANES
            row[lane * groups + group] = packed(a, b, c, e)
            if lane == 0:
                half = pack_half2(f32x2(d, 0.0)) & 0xFFFF
                row[8 * groups + group] = half | (bitcast(u32, i32(total)) << 16)


@function
def packed(a: i32, b: i32, c: i32, d: i32) -> u32:
    """Four signed bytes, the first lowest."""
    low = (bitcast(u32, a) & 255) | ((bitcast(u32, b) & 255) << 8)
    return low | ((bitcast(u32, c) & 255) << 16) | (bitcast(u32, d) << 24)


@function
def activated(value: Vector[float], OWN: str) -> Any:
    """Four elements after their activation, where there is one."""
    if OWN == "gelu":
        return f32x4(
            formulas.gelu(value.x), formulas.gelu(value.y), formulas.gelu(value.z), formulas.gelu(value.w)
        )
    return value
