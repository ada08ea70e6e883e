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
from graphml_cpu.kernels.attention.head_softmax import make_softmax
from graphml_cpu.kernels.attention.head_tiles import BLOCK, TILE_HEADS, make_scores, make_weigh
from graphml_cpu.kernels.attention.paging import (
    cell_of,
    chunk_size,
    exp_of,
    log2_of,
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
    sum_lanes,
    vector,
    zero,
)

# Query heads and key-value heads that meet a block of positions together: their scores stay in the first cache.
HEADS = 128
AT_ONCE = 8
I64 = vector("i64", AT_ONCE)


@inline
def fill_cells(cells: int, first: int, count: int, table: int, shift: int, n_cells: int) -> None:
    """Cells of `count` positions, int64 [BLOCK] and room for a vector; those of the last one again behind it."""
    done = 0
    while done < count:  # block by block of the cache, of which each is looked up once
        position = first + done
        left = (1 << shift) - (position & ((1 << shift) - 1))
        cell, end = cell_of(position, table, shift, n_cells), min(done + left, count)
        for i in range(done, end, AT_ONCE):
            run = splat(I64, cell + i - done) + ramp(I64)
            store(cells + i * 8, select(run < n_cells, run, splat(I64, n_cells)))
        done = end
    last = load_i64(cells + (count - 1) * 8)
    for i in range(count, BLOCK, AT_ONCE):
        store(cells + i * 8, splat(I64, last))


@inline
def fill_pieces(
    pieces: int, cells: int, count: int, rows: int, cell_bytes: int, heads: int, n_bytes: int
) -> None:
    """Where `n_bytes` of each of up to AT_ONCE heads begin in so many cells, in the order of memory; int64."""
    steps = ramp(I64) * n_bytes
    for i in range(count):
        store(pieces + i * heads * 8, steps + (rows + load_i64(cells + i * 8) * cell_bytes))


def make_attend_chunk(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Any:
    """`attend_chunk(...)`, inline: one token and `heads_kv` key-value heads at [first, end) -> the records.

    Several key-value heads meet a block of positions together: the scores of all, the softmax of all, the sums
    of all. What is read next is fetched meanwhile, evenly and in the order of memory, since rows of one head
    are too short and too far apart for the processor to see what comes: a block's values while scores are
    computed, and the next block's keys while values are summed, which of the chunk's last one are those at
    `k_ahead` from position `ahead` on. last: the last position that the token sees.
    """
    record_bytes = attention_record_bytes(d_v)
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    scores_of = make_scores(d_k, k_dtype, v_bytes)
    weigh = make_weigh(d_v, v_dtype, record_bytes, k_bytes)
    begin, soften = make_softmax(HEADS, BLOCK * 4)
    lanes = math.gcd(d_v, WIDTH)
    part = vector("f32", lanes)
    cells_bytes = (BLOCK + AT_ONCE) * 8
    local_cells = make_local_memory(2 * cells_bytes)
    local_pieces = make_local_memory(AT_ONCE * (BLOCK + 1) * 8)
    local_scores = make_local_memory(HEADS * BLOCK * 4)
    local_tops, local_totals, local_alphas = (make_local_memory((HEADS + WIDTH) * 4) for _ in range(3))

    @inline
    def write_records(record: int, chunk: int, heads: int, tops: int, totals: int) -> None:
        for head in range(heads):
            at = record + head * record_bytes + chunk * 4
            store_f32(at, load_f32(tops + head * 4))
            store_f32(at + MAX_CHUNKS * 4, load_f32(totals + head * 4))

    @inline
    def attend_heads(
        q: int, k: int, v: int, record: int, chunk: int, first: int, end: int, k_ahead: int, ahead: int,
        last: int, n_cells: int, position: int, table: int, shift: int, head: int, group: int, heads_kv: int,
        n_head: int, n_head_kv: int, scale: Number, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        cells, next_cells, pieces = local_cells(), local_cells() + cells_bytes, local_pieces()
        scores, tops, totals, alphas = local_scores(), local_tops(), local_totals(), local_alphas()
        k_cell, v_cell, heads = n_head_kv * k_bytes, n_head_kv * v_bytes, heads_kv * group
        begin(heads, tops, totals)
        values = record + (2 * MAX_CHUNKS + chunk * d_v) * 4
        for own in range(heads):
            for i in range(0, d_v, lanes):
                store(values + own * record_bytes + i * 4, zero(part))
        fill_cells(cells, first, min(BLOCK, end - first), table, shift, n_cells)
        for block in range(first, end, BLOCK):
            count = min(BLOCK, end - block)
            scored = (count + SCORE_ROWS - 1) // SCORE_ROWS * SCORE_ROWS
            fill_pieces(pieces, cells, scored, v, v_cell, heads_kv, v_bytes)
            for head_kv in range(heads_kv):
                for tile in range(0, group, TILE_HEADS):
                    own = head_kv * group + tile
                    scores_of(min(TILE_HEADS, group - tile), count, q + own * d_k * 4, cells,
                              k + head_kv * k_bytes, k_cell, scores + own * BLOCK * 4,
                              pieces + head_kv * scored * 8)  # fmt: skip
            soften(heads, scores, count, block - position, head, n_head, scale, softcap, max_bias, tops, totals,
                   alphas)  # fmt: skip
            more = block + BLOCK < end
            following, behind = block + BLOCK, end
            if not more:
                following, behind = min(ahead, last), last + 1
            fill_cells(next_cells, following, min(BLOCK, behind - following), table, shift, n_cells)
            fill_pieces(pieces, next_cells, count, k if more else k_ahead, k_cell, heads_kv, k_bytes)
            for head_kv in range(heads_kv):
                for tile in range(0, group, TILE_HEADS):
                    own = head_kv * group + tile
                    weigh(min(TILE_HEADS, group - tile), scores + own * BLOCK * 4, cells, count,
                          v + head_kv * v_bytes, v_cell, alphas + own * 4, values + own * record_bytes,
                          pieces + head_kv * count * 8)  # fmt: skip
            cells, next_cells = next_cells, cells
        write_records(record, chunk, heads, tops, totals)

    @inline
    def attend_chunk(
        q: int, k: int, v: int, record: int, chunk: int, first: int, end: int, k_ahead: int, ahead: int,
        last: int, n_cells: int, position: int, table: int, shift: int, head: int, group: int, heads_kv: int,
        n_head: int, n_head_kv: int, scale: Number, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        together = max(1, min(AT_ONCE, HEADS // group))
        for head_kv in range(0, heads_kv, together):
            is_last = head_kv + together >= heads_kv
            for tile in range(0, group, HEADS):
                own = head_kv * group + tile
                attend_heads(
                    q + own * d_k * 4, k + head_kv * k_bytes, v + head_kv * v_bytes, record + own * record_bytes,
                    chunk, first, end, k_ahead if is_last else k + (head_kv + together) * k_bytes,
                    ahead if is_last else first, last, n_cells, position, table, shift, head + own,
                    min(HEADS, group - tile), min(together, heads_kv - head_kv), n_head, n_head_kv, scale, softcap,
                    max_bias,
                )  # fmt: skip

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
