"""Paged attention for decoding: few tokens, each cut into chunks of positions that the threads share.

`attention_partial` runs an online softmax over each chunk and leaves (max, sum, weighted values) behind;
`attention_combine` joins the chunks of a token. How a token is cut depends on how much it sees alone, so the
result is the same bits for any number of threads and beside any other tokens. For many tokens at once see
`graphml_cpu.kernels.attention.prefill`.

The record of one token and head in `partial`: float32 maxima [16], sums [16], values [16, d_v].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.attention.head_tiles import BLOCK, TILE_HEADS, make_scores, make_weigh
from graphml_cpu.kernels.attention.paging import (
    capped,
    cell_of,
    chunk_size,
    exp_of,
    listed_cell,
    log2_of,
    slope_of,
    takes,
    visible,
)
from graphml_cpu.kernels.attention.shared_rows import noted
from graphml_cpu.kernels.attention.tiles import SCORE_ROWS, make_local_memory
from graphml_cpu.kernels.share import Number, Vector, share
from graphml_cpu.layouts import MAX_CHUNKS, attention_record_bytes
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
    load_i64,
    max_lanes,
    maximum,
    ramp,
    select,
    splat,
    store,
    store_f32,
    store_i64,
    sum_lanes,
    to_float,
    vector,
    zero,
)


@inline
def fill_cells(cells: int, first: int, count: int, table: int, shift: int, n_cells: int) -> None:
    """Cells of `count` positions, then of the last one again up to a whole tile: those scores are masked."""
    done = 0
    while done < count:  # block by block of the cache, of which each is looked up once
        position = first + done
        left = (1 << shift) - (position & ((1 << shift) - 1))
        cell, end = cell_of(position, table, shift, n_cells), min(done + left, count)
        for i in range(done, end):
            store_i64(cells + i * 8, min(cell + i - done, n_cells))
        done = end
    last = load_i64(cells + (count - 1) * 8)
    for i in range(count, (count + SCORE_ROWS - 1) // SCORE_ROWS * SCORE_ROWS):
        store_i64(cells + i * 8, last)


@inline
def soften(
    scores: int, count: int, distance: int, slope: Number, scale: Number, softcap: Number, state: int
) -> Number:
    """Scores of one head and block -> weights, in place; `state` (max, sum) is brought up to date.

    `distance` is the first position of the block minus the token's. Returns what earlier weights are to be
    multiplied with.
    """
    top = splat(F32, f32(-math.inf))
    for i in range(0, count, WIDTH):
        s = capped(load(F32, scores + i * 4), scale, softcap)
        if slope != f32(0.0):
            s = s - absolute(to_float(ramp(I32) + (distance + i))) * slope
        s = select(ramp(I32) < count - i, s, splat(F32, f32(-math.inf)))
        store(scores + i * 4, s)
        top = maximum(top, s)
    old = load_f32(state)
    new = max(old, max_lanes(top))
    if new == f32(-math.inf):
        new = f32(0.0)
    total = zero(F32)
    for i in range(0, count, WIDTH):
        weight = exp(load(F32, scores + i * 4) - new)
        store(scores + i * 4, weight)
        total = total + weight
    alpha = exp_of(old - new)
    store_f32(state, new)
    store_f32(state + MAX_CHUNKS * 4, load_f32(state + MAX_CHUNKS * 4) * alpha + sum_lanes(total))
    return alpha


@inline
def fill_ahead(cells: int, first: int, last: int, table: int, shift: int) -> None:
    """Cells of the block of positions that is fetched next, none behind the last; of any number."""
    for i in range(BLOCK):
        store_i64(cells + i * 8, listed_cell(min(first + i, last), table, shift))


def make_attend_chunk(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Any:
    """`attend_chunk(...)`, inline: one token and `heads_kv` key-value heads at [first, end) -> the records.

    The heads meet a block of positions one after the other, so that memory is read in its order. What is read
    next is fetched meanwhile, since rows of one head are too short and too far apart for the processor to see
    what comes: a block's values while scores are computed, and while values are summed the keys of the next
    head, or of the next block, which of the chunk's last one are those at `k_ahead` from position `ahead` on.
    last: the last position that the token sees.
    """
    record_bytes = attention_record_bytes(d_v)
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    scores_of = make_scores(d_k, k_dtype, v_bytes)
    weigh = make_weigh(d_v, v_dtype, record_bytes, k_bytes)
    lanes = math.gcd(d_v, WIDTH)
    part = vector("f32", lanes)
    local_cells, local_ahead = make_local_memory(BLOCK * 8), make_local_memory(BLOCK * 8)
    local_scores = make_local_memory(TILE_HEADS * BLOCK * 4)
    local_alphas = make_local_memory(64)

    @inline
    def begin_records(record: int, chunk: int, group: int) -> None:
        for head in range(group):
            at = record + head * record_bytes
            store_f32(at + chunk * 4, f32(-math.inf))
            store_f32(at + (MAX_CHUNKS + chunk) * 4, f32(0.0))
            for i in range(0, d_v, lanes):
                store(at + (2 * MAX_CHUNKS + chunk * d_v + i) * 4, zero(part))

    @inline
    def attend_chunk(
        q: int, k: int, v: int, record: int, chunk: int, first: int, end: int, k_ahead: int, ahead: int,
        last: int, n_cells: int, position: int, table: int, shift: int, head: int, group: int, heads_kv: int,
        n_head: int, n_head_kv: int, scale: Number, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        cells, scores, alphas, next_cells = local_cells(), local_scores(), local_alphas(), local_ahead()
        k_cell, v_cell = n_head_kv * k_bytes, n_head_kv * v_bytes
        begin_records(record, chunk, heads_kv * group)
        for block in range(first, end, BLOCK):
            count = min(BLOCK, end - block)
            fill_cells(cells, block, count, table, shift, n_cells)
            more = block + BLOCK < end
            fill_ahead(next_cells, block + BLOCK if more else ahead, last, table, shift)
            for head_kv in range(heads_kv):
                is_last = head_kv == heads_kv - 1
                fetched_cells, fetched = cells, k + (head_kv + 1) * k_bytes
                if is_last:
                    fetched_cells, fetched = next_cells, k if more else k_ahead
                for tile in range(0, group, TILE_HEADS):
                    heads, own = min(TILE_HEADS, group - tile), head_kv * group + tile
                    at, v_own = record + own * record_bytes, v + head_kv * v_bytes
                    scores_of(heads, count, q + own * d_k * 4, cells, k + head_kv * k_bytes, k_cell, scores,
                              v_own, v_cell)  # fmt: skip
                    for i in range(heads):
                        slope = slope_of(head + own + i, n_head, max_bias)
                        state = at + i * record_bytes + chunk * 4
                        alpha = soften(
                            scores + i * BLOCK * 4, count, block - position, slope, scale, softcap, state
                        )
                        store_f32(alphas + i * 4, alpha)
                    values = at + (2 * MAX_CHUNKS + chunk * d_v) * 4
                    weigh(heads, scores, cells, count, v_own, v_cell, alphas, values, fetched_cells, fetched,
                          k_cell)  # fmt: skip

    return attend_chunk


def make_attention_partial(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Callable[..., None]:
    """Attention of each token over each chunk of what it sees; `attention_combine` finishes it.

    q float32 [rows, n_head, d_k], rows `q_stride` bytes apart; k_cache `k_dtype` [n_cells, n_head_kv, d_k],
    v_cache `v_dtype` [n_cells, n_head_kv, d_v]; positions, sequences int32 [rows]; lengths int32 [sequences]
    (read unless `causal`); block_table int32 [sequences, table_stride]: position p of sequence s lies in cell
    block_table[s, p // block_size] * block_size + p % block_size, block_size a power of two. A token sees
    positions up to its own (`causal` 1) or below the sequence's length (0), of them those in its `window`
    (0 = all; below 0: those of its stretch of -window positions). scores = q . k * scale, then softcap *
    tanh(scores / softcap) (0 = off), then ALiBi of `max_bias` (0 = off). partial:
    `attention_partial_bytes(rows, n_head, d_v)` behind `notes_bytes` of notes (0: none), which say what
    `attention.shared_prefix` has computed and is left out. alone: 0, or of how many rows at most that stand
    alone (`paging.takes`) there are records, and of no others.
    """
    record_bytes = attention_record_bytes(d_v)
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    attend_chunk = make_attend_chunk(k_dtype, v_dtype, d_k, d_v)

    def attention_partial(
        ith: Int, nth: Int, q: Address, k_cache: RunAddress, v_cache: RunAddress, positions: Address,
        sequences: Address, lengths: Address, block_table: Address, partial: Address, notes_bytes: Int,
        n_head: Int, n_head_kv: Int, block_size: Int, table_stride: Int, window: Int, causal: Int,
        scale: Float, softcap: Float, max_bias: Float, q_stride: Int, alone: Int, n_sequences: Dim, room: Dim,
        n_cells: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        group = n_head // n_head_kv
        shift = log2_of(block_size)
        total, taken = 0, 0
        for row in range(rows):
            if takes(row, taken, alone, rows, sequences):
                first, end = visible(row, positions, sequences, lengths, window, causal, n_sequences, room)
                shared, _ = noted(partial, notes_bytes, taken)
                total += (end - first - shared) * n_head_kv
                taken += 1
        # A chunk is the work of the thread in whose part of all positions it begins.
        mine, next_one = share(ith, nth, total)
        done, record_row = 0, 0
        for row in range(rows):
            is_taken = takes(row, record_row, alone, rows, sequences)
            first, end = visible(row, positions, sequences, lengths, window, causal, n_sequences, room)
            if is_taken:
                # Shared positions begin with the first of all, and may end within a chunk.
                shared, _ = noted(partial, notes_bytes, record_row)
                left = (end - first - shared) * n_head_kv
                if done < next_one and done + left > mine:
                    size = chunk_size(end - first, MAX_CHUNKS)
                    table = block_table + load_i32(sequences + row * 4) * table_stride * 4
                    for chunk in range(shared // size, (end - first + size - 1) // size):
                        begin, stop = first + max(chunk * size, shared), min(first + (chunk + 1) * size, end)
                        head_kv, heads_kv = n_head_kv, 0  # those of which this thread has this chunk
                        for i in range(n_head_kv):
                            start = done + (begin - first - shared) * n_head_kv + i * (stop - begin)
                            if mine <= start < next_one:
                                head_kv, heads_kv = min(head_kv, i), heads_kv + 1
                        if heads_kv > 0:
                            head = head_kv * group
                            attend_chunk(q + row * q_stride + head * d_k * 4,
                                         k_cache + head_kv * k_bytes, v_cache + head_kv * v_bytes,
                                         partial + notes_bytes + (record_row * n_head + head) * record_bytes,
                                         chunk, begin, stop, k_cache, stop, end - 1, n_cells,
                                         load_i32(positions + row * 4), table, shift, head, group, heads_kv,
                                         n_head, n_head_kv, scale, softcap, max_bias)  # fmt: skip
                done += left
                record_row += 1

    return attention_partial


def make_combine_chunks(d_v: int) -> Any:
    """An inline function `combine(record, length, shared, segments, sinks, head, to)`, one token and head.

    length: positions that the token sees, the first `shared` of them in the record's first `segments`.
    """
    lanes = math.gcd(d_v, WIDTH)
    part = vector("f32", lanes)
    local_weights = make_local_memory(MAX_CHUNKS * 4)

    @inline
    def holds_chunk(i: int, segments: int, own: int, n_chunks: int) -> Vector:
        """Which of the places from `i` on hold a chunk: the segments, and those from `own` on."""
        return (ramp(I32) < n_chunks - i) & ((ramp(I32) >= own - i) | (ramp(I32) < segments - i))

    @inline
    def chunk_weights(
        record: int, segments: int, own: int, n_chunks: int, sinks: int, head: int, weights: int
    ) -> None:
        """What each chunk's values are multiplied with; those between the segments and `own` are empty."""
        top = splat(F32, f32(-math.inf))
        for i in range(0, n_chunks, WIDTH):
            inside = holds_chunk(i, segments, own, n_chunks)
            here = select(inside, load(F32, record + i * 4), splat(F32, f32(-math.inf)))
            top = maximum(top, here)
        highest = max_lanes(top)
        if sinks != 0:
            highest = max(highest, load_f32(sinks + head * 4))
        total = zero(F32)
        for i in range(0, n_chunks, WIDTH):
            inside = holds_chunk(i, segments, own, n_chunks)
            weight = select(inside, exp(load(F32, record + i * 4) - highest), zero(F32))
            store(weights + i * 4, weight)
            total = total + select(inside, weight * load(F32, record + (MAX_CHUNKS + i) * 4), zero(F32))
        denominator = sum_lanes(total)
        if sinks != 0:
            denominator += exp_of(load_f32(sinks + head * 4) - highest)
        for i in range(0, n_chunks, WIDTH):
            store(weights + i * 4, load(F32, weights + i * 4) * (f32(1.0) / denominator))

    @inline
    def combine(record: int, length: int, shared: int, segments: int, sinks: int, head: int, to: int) -> None:
        weights = local_weights()
        size = chunk_size(length, MAX_CHUNKS)
        n_chunks, own = (length + size - 1) // size, shared // size
        chunk_weights(record, segments, own, n_chunks, sinks, head, weights)
        values = record + 2 * MAX_CHUNKS * 4
        for i in range(0, d_v, lanes):
            total = zero(part)
            for chunk in range(segments):
                weight = splat(part, load_f32(weights + chunk * 4))
                total = fma(load(part, values + (chunk * d_v + i) * 4), weight, total)
            for chunk in range(own, n_chunks):
                weight = splat(part, load_f32(weights + chunk * 4))
                total = fma(load(part, values + (chunk * d_v + i) * 4), weight, total)
            store(to + i * 4, total)

    return combine


def make_attention_combine(d_v: int) -> Callable[..., None]:
    """out float32 [rows, n_head, d_v] from what `attention_partial` left.

    A token that sees nothing gets zeros. positions, sequences, lengths, window, causal and alone as there;
    sinks float32 [n_head] or address 0: a score per head that takes part in the softmax and has no value.
    Rows of out are `out_stride` bytes apart.
    """
    record_bytes, combine = attention_record_bytes(d_v), make_combine_chunks(d_v)

    def attention_combine(
        ith: Int, nth: Int, partial: Address, positions: Address, sequences: Address, lengths: Address,
        sinks: Address, out: Address, notes_bytes: Int, n_head: Int, window: Int, causal: Int,
        out_stride: Int, alone: Int, n_sequences: Dim, room: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        count = 0
        for row in range(rows):
            if takes(row, count, alone, rows, sequences):
                count += 1
        begin, end_unit = share(ith, nth, count * n_head)
        unit = 0  # the first of the row's, one for each of its heads
        for row in range(rows):
            if unit < end_unit and takes(row, unit // n_head, alone, rows, sequences):
                first, end = visible(row, positions, sequences, lengths, window, causal, n_sequences, room)
                shared, segments = noted(partial, notes_bytes, unit // n_head)
                for head in range(max(begin - unit, 0), min(end_unit - unit, n_head)):
                    to = out + row * out_stride + head * d_v * 4
                    record = partial + notes_bytes + (unit + head) * record_bytes
                    combine(record, end - first, shared, segments, sinks, head, to)
                unit += n_head

    return attention_combine
