"""Paged attention for many tokens at once: tiles of queries against blocks of positions, an online softmax.

A tile's queries, the tokens of one run of a sequence times the query heads of one key-value head, lie in the
lanes of up to three vectors, so every step of the softmax works on whole vectors and no sum crosses lanes.
Keys and values of a block are turned into float32 once per tile. Which blocks a tile sees decides what is
computed: those that none of its queries sees are skipped, and only those at the edges are masked.

Scores and weights have a position per row and a query per lane: scores = K @ Q^T, values = V^T @ weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.paging import cell_of, log2_of, slope_of, visible
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.kernels.storage import make_storage
from graphml_cpu.kernels.tiles import make_outer_tile
from graphml_cpu.layouts import PREFILL_BLOCK, PREFILL_LANE_ARRAYS, prefill_values
from graphml_cpu.simd import (
    F32,
    I32,
    WIDTH,
    absolute,
    exp,
    f32,
    fma,
    load,
    load_f32,
    load_i32,
    maximum,
    select,
    splat,
    store,
    store_f32,
    store_i32,
    tanh,
    zero,
)

# Queries of a tile, and rows (positions or value elements) of a register tile.
_VECTORS = 3
_LANES = _VECTORS * WIDTH
_TILE_ROWS = 8 if WIDTH == 16 else 4
# Bytes from one row of scores, queries or values to the next.
_ROW = _LANES * 4
_STEP = WIDTH * 4


@dataclass(frozen=True)
class _Places:
    """Byte offsets in a thread's scratch; see `graphml_cpu.layouts.prefill_scratch_bytes`."""

    first: int  # int32 per lane: the first position it sees
    end: int  # int32: the position after the last
    position: int  # float32 per lane, as all that follow
    slope: int
    sink: int
    top: int
    total: int
    alpha: int
    queries: int  # [d_k, lanes]
    keys: int  # [block, d_k]
    values: int  # [block, d_v rounded up to 8]
    weights: int  # [block, lanes]
    out: int  # [d_v rounded up to 8, lanes]


def _places(d_k: int, d_v: int) -> _Places:
    first, end, position, slope, sink, top, total, alpha = range(0, PREFILL_LANE_ARRAYS * _ROW, _ROW)
    queries = PREFILL_LANE_ARRAYS * _ROW
    keys = queries + d_k * _ROW
    values = keys + PREFILL_BLOCK * d_k * 4
    weights = values + PREFILL_BLOCK * prefill_values(d_v) * 4
    out = weights + PREFILL_BLOCK * _ROW
    return _Places(first, end, position, slope, sink, top, total, alpha, queries, keys, values, weights, out)


def _by_vectors(rescaled: bool) -> Any:
    """`tile(vectors, ...)`: `make_outer_tile` for 1 to 3 vectors of queries."""
    tile_1, tile_2, tile_3 = (
        make_outer_tile(_TILE_ROWS, vectors, WIDTH, rescaled) for vectors in range(1, _VECTORS + 1)
    )

    @inline
    def tiles(
        vectors: int, n_rows: int, a: int, a_row: int, a_step: int, b: int, count: int, out: int, alpha: int
    ) -> None:
        if vectors == 1:
            for row in range(0, n_rows, _TILE_ROWS):
                tile_1(a + row * a_row, a_row, a_step, b, _ROW, count, out + row * _ROW, _ROW, alpha)
        elif vectors == 2:
            for row in range(0, n_rows, _TILE_ROWS):
                tile_2(a + row * a_row, a_row, a_step, b, _ROW, count, out + row * _ROW, _ROW, alpha)
        else:
            for row in range(0, n_rows, _TILE_ROWS):
                tile_3(a + row * a_row, a_row, a_step, b, _ROW, count, out + row * _ROW, _ROW, alpha)

    return tiles


def _make_load_rows(dtype: str, d: int, row_bytes: int) -> Any:
    """`load_rows(cache, cell_bytes, first, count, table, shift, out)`: `count` positions as float32 rows."""
    storage = make_storage(dtype, math.gcd(d, WIDTH))
    lanes, item_bytes, load_all = math.gcd(d, WIDTH), storage.item_bytes, storage.load

    @inline
    def load_rows(
        cache: int, cell_bytes: int, first: int, count: int, table: int, shift: int, out: int
    ) -> None:
        for row in range(count):
            source = cache + cell_of(first + row, table, shift) * cell_bytes
            for i in range(0, d, lanes):
                store(out + row * row_bytes + i * 4, load_all(source + i * item_bytes))

    return load_rows


def _make_load_queries(d_k: int, places: _Places) -> Any:
    """`load_queries(q, q_stride, scratch, tokens, heads, scale)`: the lanes of a tile, token by token."""

    @inline
    def load_queries(q: int, q_stride: int, scratch: int, tokens: int, heads: int, scale: Number) -> None:
        queries = scratch + places_queries
        for lane in range(tokens * heads):
            token = lane // heads
            source = q + token * q_stride + (lane - token * heads) * d_k * 4
            for i in range(d_k):
                store_f32(queries + i * _ROW + lane * 4, load_f32(source + i * 4) * scale)
        for lane in range(tokens * heads, (tokens * heads + WIDTH - 1) // WIDTH * WIDTH):
            for i in range(d_k):
                store_f32(queries + i * _ROW + lane * 4, f32(0.0))

    places_queries = places.queries
    return load_queries


def _make_begin_lanes(places: _Places) -> Any:
    """`begin_lanes(...)`: what each lane sees, its slope and sink; maximum and sum at their start."""
    first_at, end_at, position_at = places.first, places.end, places.position
    slope_at, sink_at, top_at, total_at = places.slope, places.sink, places.top, places.total

    @inline
    def begin_lanes(
        scratch: int, token: int, tokens: int, head: int, heads: int, n_head: int, positions: int,
        sequences: int, lengths: int, window: int, causal: int, max_bias: Number, sinks: int,
    ) -> None:  # fmt: skip
        for lane in range(_LANES):
            at = scratch + lane * 4
            row = token + min(lane // heads, tokens - 1)
            index = head + lane % heads
            first, end = visible(row, positions, sequences, lengths, window, causal)
            store_i32(at + first_at, first)
            store_i32(at + end_at, end)
            store_f32(at + position_at, f32(load_i32(positions + row * 4)))
            store_f32(at + slope_at, slope_of(index, n_head, max_bias))
            sink = f32(-math.inf)
            if sinks != 0:
                sink = load_f32(sinks + index * 4)
            store_f32(at + sink_at, sink)
            store_f32(at + top_at, f32(-math.inf))
            store_f32(at + total_at, f32(0.0))

    return begin_lanes


@inline
def _finite_or_zero(x: Vector) -> Vector:
    """Zero for the maximum of nothing, so that minus infinity less it stays minus infinity."""
    return select(x == f32(-math.inf), zero(F32), x)


def _make_bend(places: _Places) -> Any:
    """`bend(...)`: softcap, ALiBi and mask on one vector of scores of a block, in place."""
    first_at, end_at, position_at, slope_at = places.first, places.end, places.position, places.slope
    weights_at = places.weights

    @inline
    def bend(scratch: int, lane: int, block: int, count: int, softcap: Number, max_bias: Number) -> None:
        first, end = load(I32, scratch + first_at + lane), load(I32, scratch + end_at + lane)
        position, slope = load(F32, scratch + position_at + lane), load(F32, scratch + slope_at + lane)
        for row in range(count):
            at = scratch + weights_at + row * _ROW + lane
            s = load(F32, at)
            if softcap > f32(0.0):
                s = tanh(s) * softcap
            if max_bias > f32(0.0):
                s = s - absolute(position - f32(block + row)) * slope
            seen = (first <= block + row) & (end > block + row)
            store(at, select(seen, s, splat(F32, f32(-math.inf))))

    return bend


def _make_soften(places: _Places) -> Any:
    """`soften(...)`: one vector of scores of a block -> weights, in place; maximum, sum, alpha."""
    top_at, total_at, alpha_at, weights_at = places.top, places.total, places.alpha, places.weights

    @inline
    def soften(scratch: int, lane: int, count: int) -> None:
        column = scratch + weights_at + lane
        old = load(F32, scratch + top_at + lane)
        a, b = old, old
        for row in range(0, count - 1, 2):
            a = maximum(a, load(F32, column + row * _ROW))
            b = maximum(b, load(F32, column + row * _ROW + _ROW))
        if count % 2 == 1:
            a = maximum(a, load(F32, column + (count - 1) * _ROW))
        top = maximum(a, b)
        base = _finite_or_zero(top)
        total = zero(F32)
        for row in range(count):
            weight = exp(load(F32, column + row * _ROW) - base)
            store(column + row * _ROW, weight)
            total = total + weight
        alpha = exp(old - base)
        store(scratch + top_at + lane, top)
        store(scratch + alpha_at + lane, alpha)
        store(scratch + total_at + lane, fma(load(F32, scratch + total_at + lane), alpha, total))

    return soften


def _make_finish(d_v: int, places: _Places) -> Any:
    """`finish(scratch, tokens, heads, out, out_stride)`: sums divided out, the lanes put back into rows."""
    top_at, total_at, alpha_at, sink_at = places.top, places.total, places.alpha, places.sink
    values_at = places.out

    @inline
    def finish(scratch: int, tokens: int, heads: int, out: int, out_stride: int) -> None:
        for lane in range(0, _ROW, _STEP):
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
                store_f32(to + i * 4, load_f32(source + i * _ROW) * factor)

    return finish


def _make_attend(dtype: str, d_k: int, d_v: int) -> Any:
    """`attend(...)`: the queries in scratch against positions [start, end) of their sequence."""
    places = _places(d_k, d_v)
    value_rows = prefill_values(d_v)
    queries_at, keys_at, values_at = places.queries, places.keys, places.values
    weights_at, out_at, alpha_at = places.weights, places.out, places.alpha
    load_keys, load_values = _make_load_rows(dtype, d_k, d_k * 4), _make_load_rows(dtype, d_v, value_rows * 4)
    scores, weigh = _by_vectors(rescaled=False), _by_vectors(rescaled=True)
    bend, soften = _make_bend(places), _make_soften(places)
    item_bytes = make_storage(dtype).item_bytes

    @inline
    def attend(
        scratch: int, vectors: int, start: int, end: int, all_first: int, all_end: int, k: int, v: int,
        n_head_kv: int, table: int, shift: int, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        out, alpha = scratch + out_at, scratch + alpha_at
        for i in range(0, value_rows * _ROW, _STEP):
            store(out + i, zero(F32))
        bent = softcap > f32(0.0) or max_bias > f32(0.0)
        for block in range(start, end, PREFILL_BLOCK):
            count = min(PREFILL_BLOCK, end - block)
            load_keys(k, n_head_kv * d_k * item_bytes, block, count, table, shift, scratch + keys_at)
            load_values(v, n_head_kv * d_v * item_bytes, block, count, table, shift, scratch + values_at)
            weights = scratch + weights_at
            scores(vectors, count, scratch + keys_at, d_k * 4, 4, scratch + queries_at, d_k, weights, 0)
            for lane in range(0, vectors * _STEP, _STEP):
                if bent or block < all_first or block + count > all_end:
                    bend(scratch, lane, block, count, softcap, max_bias)
                soften(scratch, lane, count)
            weigh(vectors, value_rows, scratch + values_at, 4, value_rows * 4, weights, count, out, alpha)

    return attend


@inline
def _run_end(token: int, rows: int, most: int, sequences: int) -> int:
    """The token after the run of one sequence that begins at `token`, at most `most` tokens long."""
    sequence = load_i32(sequences + token * 4)
    end = token + 1
    while end < min(rows, token + most) and load_i32(sequences + end * 4) == sequence:
        end += 1
    return end


@inline
def _bounds(
    token: int, tokens: int, positions: int, sequences: int, lengths: int, window: int, causal: int
) -> tuple[int, int, int, int]:
    """Positions [first, end) that some of the tokens see, and [all_first, all_end) that all of them see."""
    first, end = visible(token, positions, sequences, lengths, window, causal)
    all_first, all_end = first, end
    for row in range(token + 1, token + tokens):
        low, high = visible(row, positions, sequences, lengths, window, causal)
        first, end = min(first, low), max(end, high)
        all_first, all_end = max(all_first, low), min(all_end, high)
    return first, end, all_first, all_end


def make_attention_prefill(dtype: str, d_k: int, d_v: int) -> Callable[..., None]:
    """Attention of many tokens; parameters as in `attention.make_attention_partial` and `..._combine`.

    out float32 [rows, n_head, d_v], rows `out_stride` bytes apart; scratch: `prefill_scratch_bytes(d_k,
    d_v)` for each thread, thread `ith`'s at scratch + ith * scratch_bytes. The result does not depend on
    the number of threads; tokens of other sequences in the batch change nothing but the tiles, within
    rounding.
    """
    places = _places(d_k, d_v)
    item_bytes = make_storage(dtype).item_bytes
    load_queries, begin_lanes = _make_load_queries(d_k, places), _make_begin_lanes(places)
    attend, finish = _make_attend(dtype, d_k, d_v), _make_finish(d_v, places)

    def attention_prefill(
        ith: Int, nth: Int, q: Address, k_cache: RunAddress, v_cache: RunAddress, positions: Address,
        sequences: Address, lengths: Address, block_table: Address, sinks: Address, out: Address,
        scratch: Address, scratch_bytes: Int, n_head: Int, n_head_kv: Int, block_size: Int, table_stride: Int,
        window: Int, causal: Int, scale: Float, softcap: Float, max_bias: Float, q_stride: Int, out_stride:
        Int, rows: Dim,
    ) -> None:  # fmt: skip
        group = n_head // n_head_kv
        heads_per_tile = min(group, _LANES)
        shift = log2_of(block_size)
        own = scratch + ith * scratch_bytes
        factor = scale
        if softcap > f32(0.0):
            factor = scale / softcap
        unit, token = 0, 0
        while token < rows:
            next_token = _run_end(token, rows, max(_LANES // group, 1), sequences)
            tokens = next_token - token
            table = block_table + load_i32(sequences + token * 4) * table_stride * 4
            first, end, all_first, all_end = _bounds(
                token, tokens, positions, sequences, lengths, window, causal
            )
            for head_kv in range(n_head_kv):
                for piece in range(0, group, heads_per_tile):
                    # Turning back at each end spreads the longer units of later tokens evenly.
                    turn = unit // nth
                    place = unit - turn * nth
                    if turn % 2 == 1:
                        place = nth - 1 - place
                    unit += 1
                    if place == ith:
                        heads = min(heads_per_tile, group - piece)
                        head = head_kv * group + piece
                        at = q + token * q_stride + head * d_k * 4
                        load_queries(at, q_stride, own, tokens, heads, factor)
                        begin_lanes(own, token, tokens, head, heads, n_head, positions, sequences, lengths,
                        window,
                                    causal, max_bias, sinks)  # fmt: skip
                        attend(own, (tokens * heads + WIDTH - 1) // WIDTH, first, end, all_first, all_end,
                               k_cache + head_kv * d_k * item_bytes, v_cache + head_kv * d_v * item_bytes,
                               n_head_kv, table, shift, softcap, max_bias)  # fmt: skip
                        finish(own, tokens, heads, out + token * out_stride + head * d_v * 4, out_stride)
            token = next_token

    return attention_prefill
