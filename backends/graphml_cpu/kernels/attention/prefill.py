"""Paged attention for many tokens at once: tiles of queries against blocks of positions, an online softmax.

A tile's queries, the tokens of one run of a sequence times the query heads of one key-value head, are in the
lanes of up to three vectors, so every step of the softmax works on whole vectors and no sum crosses lanes.
Keys and values of a block are converted to float32 once per tile. Which blocks a tile sees decides what is
computed: those that none of its queries sees are skipped, and only those at the edges are masked.

Scores and weights have a position per row and a query per lane: scores = K @ Q^T, values = V^T @ weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.block_rows import (
    make_load_keys_in_pairs,
    make_load_rows,
    make_load_values_in_pairs,
)
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.attention.paging import is_alone, log2_of, visible
from graphml_cpu.kernels.attention.query_tiles import (
    LANES,
    ROW,
    STEP,
    ScratchOffsets,
    by_vectors,
    make_begin_lane,
    make_bend,
    make_clear_queries,
    make_finish,
    make_load_query,
    make_places,
    make_soften,
)
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.share import Number, share
from graphml_cpu.layouts import PREFILL_BLOCK, PREFILL_TILES, prefill_tile_bytes, prefill_values
from graphml_cpu.simd import F32, WIDTH, f32, load_i32, load_i64, store, store_i64, zero

_SHARES = 4  # of the work, for each thread, at least
SEEN_BYTES = 5 * 8
"""What `attend` is told of each tile."""


def make_attend(k_dtype: str, v_dtype: str, d_k: int, d_v: int, pairs: bool = False) -> Any:
    """`attend(...)`: the tiles of queries in scratch against positions [start, end) of their sequence.

    seen: of each tile the number of vectors, and the positions [first, end) that some and that all of its
    queries see, `SEEN_BYTES` of int64. blocks: scratch for keys and values. pairs: in products of bfloat16,
    as the queries are; d_k is even.
    """
    places, tile_bytes = make_places(d_k, d_v), prefill_tile_bytes(d_k, d_v)
    value_rows, values_at = prefill_values(d_v), PREFILL_BLOCK * d_k * 4
    queries_at, weights_at = places.queries, places.weights
    out_at, alpha_at = places.out, places.alpha
    load_keys = make_load_keys_in_pairs(k_dtype, d_k) if pairs else make_load_rows(k_dtype, d_k, d_k * 4)
    load_values = (
        make_load_values_in_pairs(v_dtype, d_v) if pairs else make_load_rows(v_dtype, d_v, value_rows * 4)
    )
    scores, weigh = by_vectors(rescaled=False, pairs=pairs), by_vectors(rescaled=True, pairs=pairs)
    bend, soften = make_bend(places), make_soften(places, pairs)
    held = 2 if pairs else 1  # numbers in an int32
    k_row = d_k * 4 // held
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)

    @inline
    def attend_block(
        tile: int, vectors: int, block: int, count: int, keys: int, values: int, all_first: int, all_end: int,
        bent: bool, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        weights, out, alpha = tile + weights_at, tile + out_at, tile + alpha_at
        scores(vectors, count, keys, k_row, 4, tile + queries_at, d_k // held, weights, 0)
        for lane in range(0, vectors * STEP, STEP):
            if bent or block < all_first or block + count > all_end:
                bend(tile, lane, block, count, softcap, max_bias)
            soften(tile, lane, count)
        steps = (count + held - 1) // held
        weigh(vectors, value_rows, values, 4, value_rows * 4, weights, steps, out, alpha)

    @inline
    def attend(
        scratch: int, tiles: int, seen: int, start: int, end: int, blocks: int, k: int, v: int,
        n_head_kv: int, n_cells: int, table: int, shift: int, softcap: Number, max_bias: Number,
    ) -> None:  # fmt: skip
        for tile in range(tiles):
            out = scratch + tile * tile_bytes + out_at
            for i in range(0, value_rows * ROW, STEP):
                store(out + i, zero(F32))
        bent = softcap > f32(0.0) or max_bias > f32(0.0)
        # Blocks begin at multiples, whichever tiles are together: the sums are the same.
        for block in range(start // PREFILL_BLOCK * PREFILL_BLOCK, end, PREFILL_BLOCK):
            count = min(PREFILL_BLOCK, end - block)
            load_keys(k, n_head_kv * k_bytes, n_cells, start, block, count, table, shift, blocks)
            values = blocks + values_at
            load_values(v, n_head_kv * v_bytes, n_cells, start, block, count, table, shift, values)
            for tile in range(tiles):
                at = seen + tile * SEEN_BYTES
                tile_end = load_i64(at + 16)
                if block < tile_end and block + count > load_i64(at + 8):
                    attend_block(
                        scratch + tile * tile_bytes, load_i64(at), block, min(count, tile_end - block),
                        blocks, values, load_i64(at + 24), load_i64(at + 32), bent, softcap,
                        max_bias,
                    )  # fmt: skip

    return attend


@inline
def note_seen(at: int, vectors: int, first: int, end: int, all_first: int, all_end: int) -> None:
    """What `attend` is told of a tile."""
    store_i64(at, vectors)
    store_i64(at + 8, first)
    store_i64(at + 16, end)
    store_i64(at + 24, all_first)
    store_i64(at + 32, all_end)


def _make_load_tile(d_k: int, places: ScratchOffsets, pairs: bool) -> Any:
    """`load_tile(...)`: the lanes of consecutive tokens, token by token, and what each sees."""
    load_query, clear_queries = make_load_query(d_k, places, pairs), make_clear_queries(d_k, places)
    begin_lane = make_begin_lane(places)

    @inline
    def load_tile(
        q: int, q_stride: int, scratch: int, token: int, tokens: int, head: int, heads: int, n_head: int,
        positions: int, sequences: int, lengths: int, window: int, causal: int, n_sequences: int,
        room: int, scale: Number,
        max_bias: Number, sinks: int,
    ) -> None:  # fmt: skip
        for i in range(tokens):
            load_query(q + i * q_stride, scratch, i * heads, heads, scale)
        clear_queries(scratch, tokens * heads)
        for lane in range(LANES):
            row = token + min(lane // heads, tokens - 1)
            first, end = visible(row, positions, sequences, lengths, window, causal, n_sequences, room)
            position = load_i32(positions + row * 4)
            begin_lane(scratch, lane, first, end, position, head + lane % heads, n_head, max_bias, sinks)

    return load_tile


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
    token: int,
    tokens: int,
    positions: int,
    sequences: int,
    lengths: int,
    window: int,
    causal: int,
    n_sequences: int,
    room: int,
) -> tuple[int, int, int, int]:
    """Positions [first, end) that some of the tokens see, and [all_first, all_end) that all of them see."""
    first, end = visible(token, positions, sequences, lengths, window, causal, n_sequences, room)
    all_first, all_end = first, end
    for row in range(token + 1, token + tokens):
        low, high = visible(row, positions, sequences, lengths, window, causal, n_sequences, room)
        first, end = min(first, low), max(end, high)
        all_first, all_end = max(all_first, low), min(all_end, high)
    return first, end, all_first, all_end


@inline
def _unit_cost(tokens: int, heads: int, length: int) -> int:
    """What a tile takes: for each position its keys and values are converted, then meet the vectors.

    Above 0 for tokens that see no position, too: somebody has to write their zeros.
    """
    return (length + 1) * ((tokens * heads + WIDTH - 1) // WIDTH + 1)


@inline
def _total_cost(
    rows: int, most: int, heads: int, units: int, positions: int, sequences: int, lengths: int, window: int,
    causal: int, n_sequences: int, room: int, alone: int,
) -> int:  # fmt: skip
    """What all tiles take; units: of each run of tokens, which has `most` of them."""
    token, total, left = 0, 0, alone
    while token < rows:
        next_token = _run_end(token, rows, most, sequences)
        if left > 0 and is_alone(token, rows, sequences):
            left -= 1
        else:
            first, end, _, _ = _bounds(
                token, next_token - token, positions, sequences, lengths, window, causal, n_sequences, room
            )
            total += units * _unit_cost(next_token - token, heads, end - first)
        token = next_token
    return total


def _make_attend_tokens(k_dtype: str, v_dtype: str, d_k: int, d_v: int, pairs: bool) -> Any:
    """`attend_tokens(...)`: consecutive tokens of a sequence, some heads of one key-value head, by tiles."""
    places, tile_bytes = make_places(d_k, d_v), prefill_tile_bytes(d_k, d_v)
    load_tile = _make_load_tile(d_k, places, pairs)
    attend, finish = make_attend(k_dtype, v_dtype, d_k, d_v, pairs), make_finish(d_v, places)
    local_seen = make_local_memory(PREFILL_TILES * SEEN_BYTES)

    @inline
    def attend_tokens(
        own: int, token: int, tokens: int, per_tile: int, q: int, head: int, heads: int, k: int, v: int,
        positions: int, sequences: int, lengths: int, table: int, sinks: int, out: int, n_head: int,
        n_head_kv: int, shift: int, window: int, causal: int, factor: Number, softcap: Number,
        max_bias: Number, q_stride: int, out_stride: int, n_sequences: int, room: int, n_cells: int,
    ) -> None:  # fmt: skip
        tiles, seen = (tokens + per_tile - 1) // per_tile, local_seen()
        start, end = room, 0
        for tile in range(tiles):
            first_token, count = token + tile * per_tile, min(per_tile, tokens - tile * per_tile)
            load_tile(q + first_token * q_stride + head * d_k * 4, q_stride, own + tile * tile_bytes,
                      first_token, count, head, heads, n_head, positions, sequences, lengths, window, causal,
                      n_sequences, room, factor, max_bias, sinks)  # fmt: skip
            first, stop, all_first, all_end = _bounds(
                first_token, count, positions, sequences, lengths, window, causal, n_sequences, room
            )
            vectors = (count * heads + WIDTH - 1) // WIDTH
            note_seen(seen + tile * SEEN_BYTES, vectors, first, stop, all_first, all_end)
            start, end = min(start, first), max(end, stop)
        blocks = own + PREFILL_TILES * tile_bytes
        attend(own, tiles, seen, start, end, blocks, k, v, n_head_kv, n_cells, table, shift, softcap,
               max_bias)  # fmt: skip
        for tile in range(tiles):
            first_token, count = token + tile * per_tile, min(per_tile, tokens - tile * per_tile)
            to = out + first_token * out_stride + head * d_v * 4
            finish(own + tile * tile_bytes, count, heads, to, out_stride)

    return attend_tokens


def make_attention_prefill(
    k_dtype: str, v_dtype: str, d_k: int, d_v: int, pairs: bool = False
) -> Callable[..., None]:
    """Attention of many tokens; parameters as in `attention.make_attention_partial` and `..._combine`.

    out float32 [rows, n_head, d_v], rows `out_stride` bytes apart; scratch: `prefill_scratch_bytes(d_k,
    d_v)` for each thread, thread `ith`'s at scratch + ith * scratch_bytes. The result does not depend on
    the number of threads; tokens of other sequences in the batch change nothing but the tiles, within
    rounding. alone: how many rows that stand alone, the first ones, are left to `attention.decode`.
    pairs: factors are rounded to bfloat16; sums are float32.
    """
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    attend_tokens = _make_attend_tokens(k_dtype, v_dtype, d_k, d_v, pairs)

    def attention_prefill(
        ith: Int, nth: Int, q: Address, k_cache: RunAddress, v_cache: RunAddress, positions: Address,
        sequences: Address, lengths: Address, block_table: Address, sinks: Address, out: Address,
        scratch: Address, scratch_bytes: Int, n_head: Int, n_head_kv: Int, block_size: Int, table_stride: Int,
        window: Int, causal: Int, scale: Float, softcap: Float, max_bias: Float, q_stride: Int, out_stride:
        Int, alone: Int, n_sequences: Dim, room: Dim, n_cells: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        group = n_head // n_head_kv
        heads_per_tile, per_tile = min(group, LANES), max(LANES // group, 1)
        shift = log2_of(block_size)
        own = scratch + ith * scratch_bytes
        factor = scale
        if softcap > f32(0.0):
            factor = scale / softcap
        pieces = (group + heads_per_tile - 1) // heads_per_tile
        # Several tiles together where there are enough for all threads still.
        together = (rows + per_tile - 1) // per_tile * n_head_kv * pieces // (nth * _SHARES)
        most = per_tile * max(1, min(together, PREFILL_TILES))
        # Tiles are the work of the thread in whose share of all costs they begin: long contexts beside short
        # ones are shared by what they take.
        begin, end_cost = share(
            ith,
            nth,
            _total_cost(rows, most, heads_per_tile, n_head_kv * pieces, positions, sequences, lengths, window,
                        causal, n_sequences, room, alone),
        )  # fmt: skip
        done, token, left = 0, 0, alone
        while token < rows:
            next_token = _run_end(token, rows, most, sequences)
            if left > 0 and is_alone(token, rows, sequences):
                left -= 1
            else:
                tokens = next_token - token
                table = block_table + load_i32(sequences + token * 4) * table_stride * 4
                first, end, _, _ = _bounds(
                    token, tokens, positions, sequences, lengths, window, causal, n_sequences, room
                )
                cost = _unit_cost(tokens, heads_per_tile, end - first)
                for head_kv in range(n_head_kv):
                    for piece in range(0, group, heads_per_tile):
                        mine = begin <= done < end_cost
                        done += cost
                        if mine:
                            heads = min(heads_per_tile, group - piece)
                            attend_tokens(own, token, tokens, per_tile, q, head_kv * group + piece, heads,
                                          k_cache + head_kv * k_bytes, v_cache + head_kv * v_bytes, positions,
                                          sequences, lengths, table, sinks, out, n_head, n_head_kv, shift,
                                          window, causal, factor, softcap, max_bias, q_stride, out_stride,
                                          n_sequences, room, n_cells)  # fmt: skip
            token = next_token

    return attention_prefill
