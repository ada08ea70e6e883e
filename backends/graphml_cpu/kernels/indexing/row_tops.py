"""The largest elements of rows as long as a vocabulary, for samplers: in one pass over each row."""

from __future__ import annotations

import math
from collections.abc import Callable

from graphml_cpu.compiler import Address, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, Vector, share
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
    load_i64,
    max_lanes,
    maximum,
    ramp,
    select,
    splat,
    store_f32,
    store_i32,
    zero,
)

_INFINITY = 0x7F800000


@inline
def _allowed(bits: int, i: int) -> Number:
    """Of W elements from i on, a multiple of W, whether each has its bit."""
    return (splat(I32, load_i32(bits + (i >> 5) * 4) >> (i & 31)) >> ramp(I32)) & splat(I32, 1)


@inline
def _masked(value: Vector, bits: int, i: int) -> Vector:
    """A vector of a row from element i on, -inf where the row has bits and an element has none."""
    if bits == 0:
        return value
    return select(_allowed(bits, i) != zero(I32), value, splat(F32, -math.inf))


@inline
def _masked_one(value: float, bits: int, i: int) -> float:
    if bits != 0 and (load_i32(bits + (i >> 5) * 4) >> (i & 31)) & 1 == 0:
        return -math.inf
    return value


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
def _block_maxima(source: int, bits: int, most: int, blocks: int) -> int:
    """The largest allowed element of each block; whether any element is NaN."""
    sizes, size = splat(I32, 0x7FFFFFFF), zero(I32)  # without the sign: NaN is larger than infinity
    for block in range(blocks):
        top = splat(F32, -math.inf)
        for i in range(block * ROW_BLOCK, (block + 1) * ROW_BLOCK, WIDTH):
            v = load(F32, source + i * 4)
            top = maximum(_masked(v, bits, i), top)  # NaN is not larger
            size = maximum(bitcast(I32, v) & sizes, size)
        store_f32(most + block * 4, max_lanes(top))
    return 1 if any_lane(size > splat(I32, _INFINITY)) else 0


@inline
def _insert_block(source: int, bits: int, begin: int, best: int, chosen: int, filled: int, k: int) -> int:
    """Put the elements of a block among the chosen ones; how many then."""
    for first in range(begin, begin + ROW_BLOCK, WIDTH):
        if filled == k:
            last = splat(F32, load_f32(best + (k - 1) * 4))
            if not any_lane(_masked(load(F32, source + first * 4), bits, first) > last):
                continue
        for i in range(first, first + WIDTH):
            filled = _insert(_masked_one(load_f32(source + i * 4), bits, i), i, best, chosen, filled, k)
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

    x float32 [rows, n], rows `x_stride` bytes apart, 0 < k <= n; masks int64 [rows] = the address of each
    row's bits, whole int32, without which an element counts as -inf; 0: all count as they are; maxima float32
    [rows, n // ROW_BLOCK]; flaws int32 [rows] = whether a row has a NaN, and its ids are of no use. A row
    belongs to one thread.
    """

    def row_tops(
        ith: Int,
        nth: Int,
        x: Address,
        masks: Address,
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
            bits = load_i64(masks + row * 8)
            flaw = _block_maxima(source, bits, most, blocks)
            least = _least_of_tops(most, blocks, best, chosen, k)
            filled = 0
            for block in range(blocks):
                if load_f32(most + block * 4) >= least:
                    filled = _insert_block(source, bits, block * ROW_BLOCK, best, chosen, filled, k)
            for i in range(blocks * ROW_BLOCK, n):
                value = load_f32(source + i * 4)
                if value != value:
                    flaw = 1
                filled = _insert(_masked_one(value, bits, i), i, best, chosen, filled, k)
            store_i32(flaws + row * 4, flaw)

    return row_tops
