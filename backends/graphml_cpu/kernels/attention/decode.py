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
from graphml_cpu.kernels.attention.chunk import make_attend_chunk
from graphml_cpu.kernels.attention.paging import (
    chunk_size,
    exp_of,
    log2_of,
    takes,
    visible,
)
from graphml_cpu.kernels.attention.shared_rows import noted
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.share import Vector, share
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
    max_lanes,
    maximum,
    ramp,
    select,
    splat,
    store,
    sum_lanes,
    vector,
    zero,
)


def make_attention_partial(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Callable[..., None]:
    """Attention of each token over each chunk of what it sees; `attention_combine` finishes it.

    q float32 [rows, n_head, d_k], rows `q_stride` bytes apart; k_cache `k_dtype` [n_cells, n_head_kv, d_k],
    v_cache `v_dtype` [n_cells, n_head_kv, d_v]; positions, sequences int32 [rows]; lengths int32 [sequences]
    (read unless `causal`); block_table int32 [sequences, table_stride]: position p of sequence s is in cell
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
