"""A tile of queries in the lanes of vectors, in a thread's scratch: what prefill does to it step by step.

Knows one tile and one block of positions; which blocks a tile meets is `kernels.attention.prefill`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from graphml_cpu import target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.paging import slope_of
from graphml_cpu.kernels.attention.tiles import make_local_memory, make_outer_tile
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.layouts import PREFILL_BLOCK, PREFILL_LANE_ARRAYS, PREFILL_VECTORS
from graphml_cpu.simd import (
    F32,
    I32,
    U32,
    WIDTH,
    absolute,
    bitcast,
    convert,
    exp,
    f32,
    fma,
    load,
    load_f32,
    load_i32,
    maximum,
    narrow_to_bf16,
    select,
    splat,
    store,
    store_f32,
    store_i32,
    tanh,
    vector,
    zero,
)

# Queries of a tile, and rows (positions or value elements) of a register tile.
VECTORS = PREFILL_VECTORS
LANES = VECTORS * WIDTH
TILE_ROWS = 8 if target.current().registers == 32 else 4
# Bytes from one row of scores, queries or values to the next.
ROW = LANES * 4
STEP = WIDTH * 4
_LOG2_E = math.log2(math.e)
_ROUNDER = 1.5 * 2.0**23  # added, it leaves the nearest whole number in the lowest bits


@dataclass(frozen=True)
class ScratchOffsets:
    """Byte offsets in a tile's scratch; see `graphml_cpu.layouts.prefill_tile_bytes`."""

    first: int  # int32 per lane: the first position it sees
    end: int  # int32: the position after the last
    position: int  # float32 per lane, as all that follow
    slope: int
    sink: int
    top: int
    total: int
    alpha: int
    queries: int  # [d_k, lanes]
    weights: int  # [block, lanes]
    out: int  # [d_v rounded up to 8, lanes]


def make_places(d_k: int, d_v: int) -> ScratchOffsets:
    """Where everything of a tile is in scratch."""
    first, end, position, slope, sink, top, total, alpha = range(0, PREFILL_LANE_ARRAYS * ROW, ROW)
    queries = PREFILL_LANE_ARRAYS * ROW
    weights = queries + d_k * ROW
    out = weights + PREFILL_BLOCK * ROW
    return ScratchOffsets(first, end, position, slope, sink, top, total, alpha, queries, weights, out)


def by_vectors(rescaled: bool, pairs: bool) -> Any:
    """`tile(vectors, ...)`: `make_outer_tile` for 1 to 3 vectors of queries."""
    tile_1, tile_2, tile_3 = (
        make_outer_tile(TILE_ROWS, vectors, WIDTH, rescaled, pairs) for vectors in range(1, VECTORS + 1)
    )

    @inline
    def tiles(
        vectors: int, n_rows: int, a: int, a_row: int, a_step: int, b: int, count: int, out: int, alpha: int
    ) -> None:
        if vectors == 1:
            for row in range(0, n_rows, TILE_ROWS):
                tile_1(a + row * a_row, a_row, a_step, b, ROW, count, out + row * ROW, ROW, alpha)
        elif vectors == 2:
            for row in range(0, n_rows, TILE_ROWS):
                tile_2(a + row * a_row, a_row, a_step, b, ROW, count, out + row * ROW, ROW, alpha)
        else:
            for row in range(0, n_rows, TILE_ROWS):
                tile_3(a + row * a_row, a_row, a_step, b, ROW, count, out + row * ROW, ROW, alpha)

    return tiles


def make_load_query(d_k: int, places: ScratchOffsets, pairs: bool = False) -> Any:
    """`load_query(q, scratch, lane, heads, scale)`: the heads of one token into lanes from `lane` on."""
    queries_at, lanes = places.queries, math.gcd(d_k, WIDTH)
    part, local_row = vector("f32", lanes), make_local_memory(d_k * 2)

    @inline
    def load_query(q: int, scratch: int, lane: int, heads: int, scale: Number) -> None:
        for head in range(heads):
            source, to = q + head * d_k * 4, scratch + queries_at + (lane + head) * 4
            for i in range(d_k):
                store_f32(to + i * ROW, load_f32(source + i * 4) * scale)

    @inline
    def load_query_in_pairs(q: int, scratch: int, lane: int, heads: int, scale: Number) -> None:
        row = local_row()
        for head in range(heads):
            source, to = q + head * d_k * 4, scratch + queries_at + (lane + head) * 4
            for i in range(0, d_k, lanes):
                store(row + i * 2, narrow_to_bf16(load(part, source + i * 4) * scale))
            for i in range(d_k // 2):
                store_i32(to + i * ROW, load_i32(row + i * 4))

    return load_query_in_pairs if pairs else load_query


def make_clear_queries(d_k: int, places: ScratchOffsets) -> Any:
    """`clear_queries(scratch, lanes)`: zeros in the lanes behind the first so many of their vector."""
    queries_at = places.queries

    @inline
    def clear_queries(scratch: int, lanes: int) -> None:
        for lane in range(lanes, (lanes + WIDTH - 1) // WIDTH * WIDTH):
            for i in range(d_k):
                store_f32(scratch + queries_at + i * ROW + lane * 4, f32(0.0))

    return clear_queries


def make_begin_lane(places: ScratchOffsets) -> Any:
    """`begin_lane(...)`: what one lane sees, its slope and sink; maximum and sum at their start."""
    first_at, end_at, position_at = places.first, places.end, places.position
    slope_at, sink_at, top_at, total_at = places.slope, places.sink, places.top, places.total

    @inline
    def begin_lane(
        scratch: int, lane: int, first: int, end: int, position: int, index: int, n_head: int,
        max_bias: Number, sinks: int,
    ) -> None:  # fmt: skip
        at = scratch + lane * 4
        store_i32(at + first_at, first)
        store_i32(at + end_at, end)
        store_f32(at + position_at, f32(position))
        store_f32(at + slope_at, slope_of(index, n_head, max_bias))
        sink = f32(-math.inf)
        if sinks != 0:
            sink = load_f32(sinks + index * 4)
        store_f32(at + sink_at, sink)
        store_f32(at + top_at, f32(-math.inf))
        store_f32(at + total_at, f32(0.0))

    return begin_lane


@inline
def _finite_or_zero(x: Vector) -> Vector:
    """Zero for the maximum of nothing, so that minus infinity less it stays minus infinity."""
    return select(x == f32(-math.inf), zero(F32), x)


def make_bend(places: ScratchOffsets) -> Any:
    """`bend(...)`: softcap, ALiBi and mask on one vector of scores of a block, in place."""
    first_at, end_at, position_at, slope_at = places.first, places.end, places.position, places.slope
    weights_at = places.weights

    @inline
    def bend(scratch: int, lane: int, block: int, count: int, softcap: Number, max_bias: Number) -> None:
        first, end = load(I32, scratch + first_at + lane), load(I32, scratch + end_at + lane)
        position, slope = load(F32, scratch + position_at + lane), load(F32, scratch + slope_at + lane)
        for row in range(count):
            at = scratch + weights_at + row * ROW + lane
            s = load(F32, at)
            if softcap > f32(0.0):
                s = tanh(s) * softcap
            if max_bias > f32(0.0):
                s = s - absolute(position - f32(block + row)) * slope
            seen = (first <= block + row) & (end > block + row)
            store(at, select(seen, s, splat(F32, f32(-math.inf))))

    return bend


@inline
def _power(x: Vector) -> Vector:
    """2**x of numbers not above 0, within 1e-4 of itself, as bfloat16 need it; 0 below -126."""
    bounded = maximum(splat(F32, f32(-126.0)), x)
    shifted = bounded + f32(_ROUNDER)
    rest = bounded - (shifted - f32(_ROUNDER))
    p = fma(rest, splat(F32, f32(0.05171774)), splat(F32, f32(0.24261112)))
    p = fma(p, rest, splat(F32, f32(0.69326099)))
    p = fma(p, rest, splat(F32, f32(0.99992807)))
    power = bitcast(F32, bitcast(I32, p) + (bitcast(I32, shifted) << 23))
    return select(x < f32(-126.0), zero(F32), power)


def make_soften(places: ScratchOffsets, pairs: bool) -> Any:
    """`soften(...)`: one vector of scores of a block -> weights, in place; maximum, sum, alpha.

    pairs: the weights of two positions in each int32, in bfloat16; that of no position is zero.
    """
    top_at, total_at, alpha_at, weights_at = places.top, places.total, places.alpha, places.weights

    @inline
    def highest(column: int, count: int, old: Vector) -> Vector:
        a, b = old, old
        for row in range(0, count - 1, 2):
            a = maximum(a, load(F32, column + row * ROW))
            b = maximum(b, load(F32, column + row * ROW + ROW))
        if count % 2 == 1:
            a = maximum(a, load(F32, column + (count - 1) * ROW))
        return maximum(a, b)

    @inline
    def finish(scratch: int, lane: int, old: Vector, top: Vector, base: Vector, total: Vector) -> None:
        alpha = exp(old - base)
        store(scratch + top_at + lane, top)
        store(scratch + alpha_at + lane, alpha)
        store(scratch + total_at + lane, fma(load(F32, scratch + total_at + lane), alpha, total))

    @inline
    def soften(scratch: int, lane: int, count: int) -> None:
        column, old = scratch + weights_at + lane, load(F32, scratch + top_at + lane)
        top = highest(column, count, old)
        base = _finite_or_zero(top)
        total = zero(F32)
        for row in range(count):
            weight = exp(load(F32, column + row * ROW) - base)
            store(column + row * ROW, weight)
            total = total + weight
        finish(scratch, lane, old, top, base, total)

    @inline
    def soften_in_pairs(scratch: int, lane: int, count: int) -> None:
        column, old = scratch + weights_at + lane, load(F32, scratch + top_at + lane)
        top = highest(column, count, old)
        base = _finite_or_zero(top)
        total, down, log2_e = zero(F32), base * f32(-_LOG2_E), splat(F32, f32(_LOG2_E))
        for row in range(0, count, 2):
            even, odd = _power(fma(load(F32, column + row * ROW), log2_e, down)), zero(F32)
            if row + 1 < count:
                odd = _power(fma(load(F32, column + row * ROW + ROW), log2_e, down))
            low, high = convert(U32, narrow_to_bf16(even)), convert(U32, narrow_to_bf16(odd))
            store(column + row // 2 * ROW, low | (high << 16))
            total = total + (even + odd)
        finish(scratch, lane, old, top, base, total)

    return soften_in_pairs if pairs else soften


def make_finish(d_v: int, places: ScratchOffsets) -> Any:
    """`finish(scratch, tokens, heads, out, out_stride)`: sums divided out, the lanes put back into rows."""
    top_at, total_at, alpha_at, sink_at = places.top, places.total, places.alpha, places.sink
    values_at = places.out

    @inline
    def finish(scratch: int, tokens: int, heads: int, out: int, out_stride: int) -> None:
        for lane in range(0, ROW, STEP):
            top, sink = load(F32, scratch + top_at + lane), load(F32, scratch + sink_at + lane)
            base = _finite_or_zero(maximum(top, sink))
            factor = exp(top - base)
            total = fma(load(F32, scratch + total_at + lane), factor, exp(sink - base))
            store(scratch + alpha_at + lane, select(total > 0.0, factor / total, zero(F32)))
        for lane in range(tokens * heads):
            token = lane // heads
            to = out + token * out_stride + (lane - token * heads) * d_v * 4
            factor = load_f32(scratch + alpha_at + lane * 4)
            source = scratch + values_at + lane * 4
            for i in range(d_v):
                store_f32(to + i * 4, load_f32(source + i * ROW) * factor)

    return finish
