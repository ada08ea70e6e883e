"""The largest elements of rows as long as a vocabulary, for samplers: in one pass over each row."""

from __future__ import annotations

import math
from collections.abc import Callable

from graphml_cpu.compiler import Address, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import ROW_BLOCK
from graphml_cpu.simd import (
    F32,
    I32,
    WIDTH,
    any_lane,
    bitcast,
    load,
    load_f32,
    load_i32,
    max_lanes,
    maximum,
    splat,
    store_f32,
    store_i32,
    zero,
)

_INFINITY = 0x7F800000


@inline
def _insert(value: float, i: int, best: int, chosen: int, filled: int, k: int) -> int:
    """Put element i in its place among `filled` chosen ones, where the last may fall out; how many then."""
    place = filled
    while place > 0 and value > load_f32(best + (place - 1) * 4):
        if place < k:
            store_f32(best + place * 4, load_f32(best + (place - 1) * 4))
            store_i32(chosen + place * 4, load_i32(chosen + (place - 1) * 4))
        place -= 1
    if place < k:
        store_f32(best + place * 4, value)
        store_i32(chosen + place * 4, i)
    return min(filled + 1, k)


@inline
def _block_maxima(source: int, most: int, blocks: int) -> int:
    """The largest element of each block; whether one of them is NaN."""
    sizes, size = splat(I32, 0x7FFFFFFF), zero(I32)  # without the sign: NaN is larger than infinity
    for block in range(blocks):
        top = splat(F32, -math.inf)
        for i in range(block * ROW_BLOCK, (block + 1) * ROW_BLOCK, WIDTH):
            v = load(F32, source + i * 4)
            top = maximum(v, top)  # NaN is not larger
            size = maximum(bitcast(I32, v) & sizes, size)
        store_f32(most + block * 4, max_lanes(top))
    return 1 if any_lane(size > splat(I32, _INFINITY)) else 0


@inline
def _insert_block(source: int, begin: int, best: int, chosen: int, filled: int, k: int) -> int:
    """Put the elements of a block among the chosen ones; how many then."""
    for first in range(begin, begin + ROW_BLOCK, WIDTH):
        if filled == k:
            last = splat(F32, load_f32(best + (k - 1) * 4))
            if not any_lane(load(F32, source + first * 4) > last):
                continue
        for i in range(first, first + WIDTH):
            filled = _insert(load_f32(source + i * 4), i, best, chosen, filled, k)
    return filled


@inline
def _least_of_tops(most: int, blocks: int, best: int, chosen: int, k: int) -> float:
    """A number that the k largest elements reach: the k-th largest of the blocks' maxima."""
    if blocks < k:
        return -math.inf
    filled = 0
    for block in range(blocks):
        filled = _insert(load_f32(most + block * 4), block, best, chosen, filled, k)
    return float(load_f32(best + (k - 1) * 4))


def make_row_tops() -> Callable[..., None]:
    """ids int32 and tops float32 [rows, k] = the k largest of x[row], the largest first, the first of equals.

    x float32 [rows, n], rows `x_stride` bytes apart, 0 < k <= n; maxima float32 [rows, n // ROW_BLOCK]; flaws
    int32 [rows] = whether a row has a NaN, and its ids are of no use. A row belongs to one thread.
    """

    def row_tops(
        ith: Int,
        nth: Int,
        x: Address,
        maxima: Address,
        ids: Address,
        tops: Address,
        flaws: Address,
        n: Int,
        k: Int,
        x_stride: Int,
        rows: Int,
    ) -> None:
        blocks = n // ROW_BLOCK  # whole ones
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            source, most = x + row * x_stride, maxima + row * blocks * 4
            best, chosen = tops + row * k * 4, ids + row * k * 4
            flaw = _block_maxima(source, most, blocks)
            least = _least_of_tops(most, blocks, best, chosen, k)
            filled = 0
            for block in range(blocks):
                if load_f32(most + block * 4) >= least:
                    filled = _insert_block(source, block * ROW_BLOCK, best, chosen, filled, k)
            for i in range(blocks * ROW_BLOCK, n):
                value = load_f32(source + i * 4)
                if value != value:
                    flaw = 1
                filled = _insert(value, i, best, chosen, filled, k)
            store_i32(flaws + row * 4, flaw)

    return row_tops
