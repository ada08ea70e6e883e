"""Four activations of an invocation as 8-bit numbers: with seven neighbours it makes a group of 32.

What computes activations stores them so (`int8_rows`), without a dispatch for the conversion. Knows nothing
of graphs.
"""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.products.int8_rows import PLANES, head_word, inverse_of, magnitude, number_of, packed
from graphml_gpu.language import (
    cluster_max,
    cluster_sum,
    f32,
    function,
    i32,
    u32,
)

LANES = 8
"""Invocations that make a group of 32: four numbers each, a word of them."""


@function
def store_quad(out: Any, row: u32, i: u32, quads: u32, value: Any, inside: Any) -> None:
    """Write quad i of a row of so many (a multiple of 8), if it is `inside`. All must call it.

    Neighbours write neighbours, and workgroups are multiples of 8. A group with a NaN becomes one of NaN: an
    infinite scale with numbers of 0.
    """
    four = max(max(magnitude(value.x), magnitude(value.y)), max(magnitude(value.z), magnitude(value.w)))
    d = cluster_max(four, LANES) / 127.0
    inverse = inverse_of(d)
    a, b = number_of(value.x, inverse), number_of(value.y, inverse)
    c, e = number_of(value.z, inverse), number_of(value.w, inverse)
    total = cluster_sum(f32(a + b + c + e), LANES)
    if inside:
        groups, group, lane = quads // LANES, i // LANES, i % LANES
        place = row * (PLANES * groups) + group
        out[place + lane * groups] = packed(a, b, c, e)
        if lane == 0:
            out[place + LANES * groups] = head_word(d, i32(total))
