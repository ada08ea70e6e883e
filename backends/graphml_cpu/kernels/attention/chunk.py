"""One token and some of its heads at one chunk of the positions that it sees: a record of attention.

The work of decoding is cut into such chunks (`attention.decode`), and that of programs in which neighbours
may change no bit (`attention.token_rows`). Knows cells of a cache and a token's heads; knows nothing of rows,
sequences or threads.
"""

from __future__ import annotations

import math
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.attention.head_softmax import make_softmax
from graphml_cpu.kernels.attention.head_tiles import BLOCK, TILE_HEADS, make_scores, make_weigh
from graphml_cpu.kernels.attention.paging import cell_of
from graphml_cpu.kernels.attention.tiles import TILE_CELLS, make_local_memory
from graphml_cpu.kernels.share import Number
from graphml_cpu.layouts import MAX_CHUNKS, attention_record_bytes
from graphml_cpu.simd import (
    WIDTH,
    load_f32,
    load_i64,
    ramp,
    select,
    splat,
    store,
    store_f32,
    vector,
    zero,
)

# Query heads that meet a block of positions together, whose scores mostly stay in the first cache.
HEADS = 128
# Key-value heads that do, and cells that are looked up together.
AT_ONCE = 8
I64 = vector("i64", AT_ONCE)
CELLS_BYTES = (BLOCK + AT_ONCE) * 8


@inline
def whole_tiles(count: int) -> int:
    """So many positions up to a whole tile: those behind them are the last one again, of weight 0."""
    return (count + TILE_CELLS - 1) // TILE_CELLS * TILE_CELLS


@inline
def fill_cells(cells: int, first: int, count: int, table: int, shift: int, n_cells: int) -> None:
    """Cells of `count` positions, `CELLS_BYTES` of int64; up to BLOCK those of the last one again."""
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
    """Where `n_bytes` of each of up to AT_ONCE heads begin in so many cells, in the order of memory."""
    steps = ramp(I64) * n_bytes
    for i in range(count):
        store(pieces + i * heads * 8, steps + (rows + load_i64(cells + i * 8) * cell_bytes))


def _make_records(d_v: int) -> tuple[Any, Any]:
    """`begin(values, heads)` and `end(record, chunk, heads, tops, totals)`: values of 0, and what is left."""
    record_bytes = attention_record_bytes(d_v)
    lanes = math.gcd(d_v, WIDTH)
    part = vector("f32", lanes)

    @inline
    def begin_records(values: int, heads: int) -> None:
        for head in range(heads):
            for i in range(0, d_v, lanes):
                store(values + head * record_bytes + i * 4, zero(part))

    @inline
    def end_records(record: int, chunk: int, heads: int, tops: int, totals: int) -> None:
        for head in range(heads):
            at = record + head * record_bytes + chunk * 4
            store_f32(at, load_f32(tops + head * 4))
            store_f32(at + MAX_CHUNKS * 4, load_f32(totals + head * 4))

    return begin_records, end_records


def _make_tiles(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> tuple[Any, Any]:
    """Scores of all heads with a block, and sums of its values for all of them.

    Meanwhile pieces of a head's bytes are fetched, as many for each head as there are positions.
    """
    record_bytes = attention_record_bytes(d_v)
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    scores_of = make_scores(d_k, k_dtype, v_bytes)
    weigh = make_weigh(d_v, v_dtype, record_bytes, k_bytes)

    @inline
    def score_heads(
        heads_kv: int, group: int, count: int, q: int, cells: int, k: int, k_cell: int, scores: int,
        pieces: int,
    ) -> None:  # fmt: skip
        for head_kv in range(heads_kv):
            for tile in range(0, group, TILE_HEADS):
                own = head_kv * group + tile
                scores_of(min(TILE_HEADS, group - tile), count, q + own * d_k * 4, cells,
                          k + head_kv * k_bytes, k_cell, scores + own * BLOCK * 4,
                          pieces + head_kv * count * 8)  # fmt: skip

    @inline
    def weigh_heads(
        heads_kv: int, group: int, count: int, scores: int, cells: int, v: int, v_cell: int, alphas: int,
        values: int, pieces: int,
    ) -> None:  # fmt: skip
        for head_kv in range(heads_kv):
            for tile in range(0, group, TILE_HEADS):
                own = head_kv * group + tile
                weigh(min(TILE_HEADS, group - tile), scores + own * BLOCK * 4, cells, count,
                      v + head_kv * v_bytes, v_cell, alphas + own * 4, values + own * record_bytes,
                      pieces + head_kv * count * 8)  # fmt: skip

    return score_heads, weigh_heads


def make_attend_chunk(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Any:
    """`attend_chunk(...)`, inline: one token and `heads_kv` key-value heads at [first, end) -> the records.

    Several key-value heads meet a block of positions together: the scores of all, the softmax of all, the
    sums of all. What is read next is fetched meanwhile, evenly and in the order of memory, since rows of one
    head are too short and too far apart for the processor to see what comes: a block's values while scores
    are computed, and the next block's keys while values are summed, which of the chunk's last one are those
    at `k_ahead` from position `ahead` on. last: the last position that the token sees.
    """
    record_bytes = attention_record_bytes(d_v)
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    score_heads, weigh_heads = _make_tiles(k_dtype, v_dtype, d_k, d_v)
    begin_softmax, soften = make_softmax(HEADS, BLOCK * 4)
    begin_records, end_records = _make_records(d_v)
    local_cells = make_local_memory(2 * CELLS_BYTES)
    local_pieces = make_local_memory(AT_ONCE * (BLOCK + 1) * 8)
    local_scores = make_local_memory(HEADS * BLOCK * 4)
    local_tops, local_totals, local_alphas = (make_local_memory((HEADS + WIDTH) * 4) for _ in range(3))

    @inline
    def attend_heads(
        q: int, k: int, v: int, record: int, chunk: int, first: int, end: int, k_ahead: int, ahead: int,
        last: int, n_cells: int, position: int, table: int, shift: int, head: int, group: int, heads_kv: int,
        n_head: int, n_head_kv: int, scale: Number, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        cells, next_cells, pieces = local_cells(), local_cells() + CELLS_BYTES, local_pieces()
        scores, tops, totals, alphas = local_scores(), local_tops(), local_totals(), local_alphas()
        k_cell, v_cell, heads = n_head_kv * k_bytes, n_head_kv * v_bytes, heads_kv * group
        values = record + (2 * MAX_CHUNKS + chunk * d_v) * 4
        begin_softmax(heads, tops, totals)
        begin_records(values, heads)
        fill_cells(cells, first, min(BLOCK, end - first), table, shift, n_cells)
        for block in range(first, end, BLOCK):
            seen = min(BLOCK, end - block)
            count = whole_tiles(seen)
            fill_pieces(pieces, cells, count, v, v_cell, heads_kv, v_bytes)
            score_heads(heads_kv, group, count, q, cells, k, k_cell, scores, pieces)
            soften(heads, scores, seen, block - position, head, n_head, scale, softcap, max_bias, tops,
                   totals, alphas)  # fmt: skip
            next_k, following, behind = k, block + BLOCK, end
            if following >= end:
                next_k, following, behind = k_ahead, min(ahead, last), last + 1
            fill_cells(next_cells, following, min(BLOCK, behind - following), table, shift, n_cells)
            fill_pieces(pieces, next_cells, count, next_k, k_cell, heads_kv, k_bytes)
            weigh_heads(heads_kv, group, count, scores, cells, v, v_cell, alphas, values, pieces)
            cells, next_cells = next_cells, cells
        end_records(record, chunk, heads, tops, totals)

    @inline
    def attend_chunk(
        q: int, k: int, v: int, record: int, chunk: int, first: int, end: int, k_ahead: int, ahead: int,
        last: int, n_cells: int, position: int, table: int, shift: int, head: int, group: int, heads_kv: int,
        n_head: int, n_head_kv: int, scale: Number, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        together = max(1, min(AT_ONCE, HEADS // group))
        for head_kv in range(0, heads_kv, together):
            next_k, following = k + (head_kv + together) * k_bytes, first
            if head_kv + together >= heads_kv:
                next_k, following = k_ahead, ahead
            for part in range(0, group, HEADS):
                own = head_kv * group + part
                attend_heads(q + own * d_k * 4, k + head_kv * k_bytes, v + head_kv * v_bytes,
                             record + own * record_bytes, chunk, first, end, next_k, following, last, n_cells,
                             position, table, shift, head + own, min(HEADS, group - part),
                             min(together, heads_kv - head_kv), n_head, n_head_kv, scale, softcap,
                             max_bias)  # fmt: skip

    return attend_chunk
