"""Scores of some heads and a block of positions -> weights: an online softmax (Milakov and Gimelshein, 2018).

Heads meet each step together: what one of them waits for, the others compute meanwhile. Knows scores and
biases; knows nothing of caches, cells or values.
"""

from __future__ import annotations

import math
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.paging import capped, slope_of
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.share import Number
from graphml_cpu.simd import (
    F32,
    I32,
    WIDTH,
    absolute,
    exp,
    f32,
    load,
    load_f32,
    max_lanes,
    maximum,
    ramp,
    select,
    splat,
    store,
    store_f32,
    sum_lanes,
    to_float,
    zero,
)


def make_softmax(most_heads: int, row_bytes: int) -> tuple[Any, Any]:
    """`begin(heads, tops, totals)` and `soften(heads, scores, count, ...)`, inline, for up to `most_heads`.

    tops, totals, alphas: float32 [heads], and room up to a whole vector: of each head its largest score, the
    sum of its weights, and what earlier weights are to be multiplied with. scores float32, `row_bytes` from
    one head to the next: of `count` positions, whose first one is `distance` behind the token's; in place.
    Each score becomes score * scale, softcap * tanh(score / softcap) unless softcap is 0, and loses ALiBi's
    slope of its head, number `head` and those after it of n_head, times the distance, unless max_bias is 0.
    """
    local_news = make_local_memory((most_heads + WIDTH) * 4)

    @inline
    def begin(heads: int, tops: int, totals: int) -> None:
        for i in range(0, heads, WIDTH):
            store(tops + i * 4, splat(F32, f32(-math.inf)))
            store(totals + i * 4, zero(F32))

    @inline
    def largest(
        scores: int, count: int, distance: int, slope: Number, scale: Number, softcap: Number
    ) -> Number:
        """Bends the scores of one head; those behind the last become -inf."""
        top = splat(F32, f32(-math.inf))
        for i in range(0, count, WIDTH):
            s = capped(load(F32, scores + i * 4), scale, softcap)
            if slope != f32(0.0):
                s = s - absolute(to_float(ramp(I32) + (distance + i))) * slope
            s = select(ramp(I32) < count - i, s, splat(F32, f32(-math.inf)))
            store(scores + i * 4, s)
            top = maximum(top, s)
        return max_lanes(top)

    @inline
    def soften(
        heads: int, scores: int, count: int, distance: int, head: int, n_head: int, scale: Number,
        softcap: Number, max_bias: Number, tops: int, totals: int, alphas: int,
    ) -> None:  # fmt: skip
        news = local_news()
        for i in range(heads):
            slope = slope_of(head + i, n_head, max_bias)
            store_f32(news + i * 4, largest(scores + i * row_bytes, count, distance, slope, scale, softcap))
        for i in range(0, heads, WIDTH):
            old = load(F32, tops + i * 4)
            new = maximum(old, load(F32, news + i * 4))
            new = select(new == splat(F32, f32(-math.inf)), zero(F32), new)  # nothing seen yet: weights of 0
            alpha = exp(old - new)
            store(tops + i * 4, new)
            store(alphas + i * 4, alpha)
            store(totals + i * 4, load(F32, totals + i * 4) * alpha)
        for i in range(heads):
            row, new_top = scores + i * row_bytes, load_f32(tops + i * 4)
            total = zero(F32)
            for at in range(0, count, WIDTH):
                weight = exp(load(F32, row + at * 4) - new_top)
                store(row + at * 4, weight)
                total = total + weight
            store_f32(totals + i * 4, load_f32(totals + i * 4) + sum_lanes(total))

    return begin, soften
