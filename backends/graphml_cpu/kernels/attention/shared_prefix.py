"""Attention of tokens to a beginning that their sequences share: its keys and values are read once.

The tokens of a group (`attention.shared_rows`) and their query heads are in the lanes of tiles, as those of
consecutive tokens do in prefill. What a tile finds in a segment of the shared positions is a chunk of each of
its tokens in the records of `attention.decode`, which computes the positions behind, and joins all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.attention.paging import log2_of
from graphml_cpu.kernels.attention.prefill import SEEN_BYTES, make_attend, note_seen
from graphml_cpu.kernels.attention.query_tiles import (
    LANES,
    ROW,
    ScratchOffsets,
    make_begin_lane,
    make_clear_queries,
    make_load_query,
    make_places,
)
from graphml_cpu.kernels.attention.shared_rows import (
    entry_leader,
    entry_row,
    find_groups,
    group_extent,
    group_rows,
    group_segments,
    write_notes,
)
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.share import Number, share
from graphml_cpu.layouts import (
    MAX_CHUNKS,
    PREFILL_BLOCK,
    SHARED_TILE_BYTES,
    attention_record_bytes,
    prefill_scratch_bytes,
    prefill_tile_bytes,
)
from graphml_cpu.simd import WIDTH, f32, load_f32, load_i32, store_f32, store_i32


@inline
def _unit_cost(lanes: int, positions: int) -> int:
    """What a tile takes: keys and values of each position are converted, then meet the vectors."""
    return positions * ((lanes + WIDTH - 1) // WIDTH + 1)


@inline
def _total_cost(groups: int, taken: int, group: int, n_head_kv: int) -> int:
    """What all tiles take."""
    total = 0
    for leader in range(taken):
        left = group_rows(groups, leader)
        while left > 0:
            tokens = min(left, LANES // group)
            total += _unit_cost(tokens * group, group_extent(groups, leader)) * n_head_kv
            left -= tokens
    return total


@inline
def _list_tile(groups: int, leader: int, entry: int, tokens: int, tile: int) -> int:
    """The next tokens of a group, int32 entries, from `entry` on; returns the entry behind the last."""
    count = 0
    while count < tokens:
        if entry_leader(groups, entry) == leader:
            store_i32(tile + count * 4, entry)
            count += 1
        entry += 1
    return entry


def _make_write_records(d_v: int, places: ScratchOffsets) -> Any:
    """`write_records(...)`: a tile's maxima, sums and values as chunk `segment` of each of its lanes.

    records: of the tile's first query head, of the first token of all.
    """
    record_bytes = attention_record_bytes(d_v)
    top_at, total_at, out_at = places.top, places.total, places.out

    @inline
    def write_records(
        scratch: int, tile: int, tokens: int, group: int, records: int, n_head: int, segment: int
    ) -> None:
        for lane in range(tokens * group):
            token = lane // group
            entry = load_i32(tile + token * 4)
            record = records + (entry * n_head + lane - token * group) * record_bytes
            source = scratch + lane * 4
            store_f32(record + segment * 4, load_f32(source + top_at))
            store_f32(record + (MAX_CHUNKS + segment) * 4, load_f32(source + total_at))
            to = record + (2 * MAX_CHUNKS + segment * d_v) * 4
            for i in range(d_v):
                store_f32(to + i * 4, load_f32(source + out_at + i * ROW))

    return write_records


def _make_load_tile(d_k: int, places: ScratchOffsets, tile_at: int) -> Callable[..., None]:
    """`load_tile(...)`: the queries of a tile's tokens, for the query heads of one key-value head."""
    load_query, clear_queries = make_load_query(d_k, places), make_clear_queries(d_k, places)

    @inline
    def load_tile(
        scratch: int, q: int, q_stride: int, groups: int, tokens: int, group: int, scale: Number
    ) -> None:
        for token in range(tokens):
            row = entry_row(groups, load_i32(scratch + tile_at + token * 4))
            load_query(q + row * q_stride, scratch, token * group, group, scale)
        clear_queries(scratch, tokens * group)

    return load_tile


def _make_begin_tile(places: ScratchOffsets, tile_at: int) -> Callable[..., None]:
    """`begin_tile(...)`: every lane sees the positions up to `end`, and has found nothing yet."""
    begin_lane = make_begin_lane(places)

    @inline
    def begin_tile(
        scratch: int, groups: int, tokens: int, group: int, head: int, n_head: int, positions: int,
        end: int, max_bias: Number,
    ) -> None:  # fmt: skip
        for lane in range(LANES):
            token = min(lane // group, tokens - 1)
            row = entry_row(groups, load_i32(scratch + tile_at + token * 4))
            position = load_i32(positions + row * 4)
            begin_lane(scratch, lane, 0, end, position, head + lane % group, n_head, max_bias, 0)

    return begin_tile


def make_attention_shared(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Callable[..., None]:
    """Attention of groups of tokens over the positions that they share; see `attention.decode`.

    Parameters as of `make_attention_partial` there, with as many query heads to a key-value head as a tile
    has lanes at most. partial: `notes_bytes` of notes (`attention.shared_rows`), then the records. scratch:
    this thread's own `shared_scratch_bytes(d_k, d_v, rows)`. The results depend on the tokens of a group,
    not on the number of threads.
    """
    places, tile_at = make_places(d_k, d_v), prefill_scratch_bytes(d_k, d_v, 1)
    tile_bytes, local_seen = prefill_tile_bytes(d_k, d_v), make_local_memory(SEEN_BYTES)
    groups_at = tile_at + SHARED_TILE_BYTES
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    record_bytes = attention_record_bytes(d_v)
    load_tile, begin_tile = _make_load_tile(d_k, places, tile_at), _make_begin_tile(places, tile_at)
    attend, write_records = make_attend(k_dtype, v_dtype, d_k, d_v), _make_write_records(d_v, places)

    @inline
    def attend_tile(
        begin: int, stop: int, done: int, leader: int, tokens: int, q: int, k_cache: int, v_cache: int,
        positions: int, table: int, records: int, scratch: int, n_head: int, n_head_kv: int, n_cells: int,
        shift: int, factor: Number, softcap: Number, max_bias: Number, q_stride: int,
    ) -> int:  # fmt: skip
        """The segments of a tile whose cost begins in [begin, stop); `done`: that before it, and behind."""
        groups, tile, group = scratch + groups_at, scratch + tile_at, n_head // n_head_kv
        vectors = (tokens * group + WIDTH - 1) // WIDTH
        extent, segments = group_extent(groups, leader), group_segments(groups, leader)
        for head_kv in range(n_head_kv):
            head, loaded = head_kv * group, 0
            for segment in range(segments):
                first, end = share(segment, segments, extent // PREFILL_BLOCK)
                first, end = first * PREFILL_BLOCK, end * PREFILL_BLOCK
                mine = begin <= done < stop
                done += _unit_cost(tokens * group, end - first)
                if mine:
                    if loaded == 0:
                        load_tile(scratch, q + head * d_k * 4, q_stride, groups, tokens, group, factor)
                        loaded = 1
                    begin_tile(scratch, groups, tokens, group, head, n_head, positions, extent, max_bias)
                    seen = local_seen()
                    note_seen(seen, vectors, first, end, 0, extent)
                    attend(scratch, 1, seen, first, end, scratch + tile_bytes, k_cache + head_kv * k_bytes,
                           v_cache + head_kv * v_bytes, n_head_kv, n_cells, table, shift, softcap,
                           max_bias)  # fmt: skip
                    write_records(
                        scratch, tile, tokens, group, records + head * record_bytes, n_head, segment
                    )
        return done

    def attention_shared(
        ith: Int, nth: Int, q: Address, k_cache: RunAddress, v_cache: RunAddress, positions: Address,
        sequences: Address, lengths: Address, block_table: Address, partial: Address, scratch: Address,
        notes_bytes: Int, n_head: Int, n_head_kv: Int, block_size: Int, table_stride: Int, window: Int,
        causal: Int, scale: Float, softcap: Float, max_bias: Float, q_stride: Int, alone: Int,
        n_sequences: Dim, room: Dim, n_cells: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        groups, group = scratch + groups_at, n_head // n_head_kv
        taken = find_groups(groups, positions, sequences, lengths, block_table, table_stride, block_size,
                            window, causal, alone, n_sequences, room, rows)  # fmt: skip
        if ith == 0:
            write_notes(groups, taken, partial)
        factor = scale
        if softcap > f32(0.0):
            factor = scale / softcap
        # A segment of a tile is the work of the thread in whose share of all costs it begins.
        begin, stop = share(ith, nth, _total_cost(groups, taken, group, n_head_kv))
        done = 0
        for leader in range(taken):
            left, entry = group_rows(groups, leader), leader
            row = entry_row(groups, leader)
            table = block_table + load_i32(sequences + row * 4) * table_stride * 4
            while left > 0:
                tokens = min(left, LANES // group)
                entry = _list_tile(groups, leader, entry, tokens, scratch + tile_at)
                done = attend_tile(begin, stop, done, leader, tokens, q, k_cache, v_cache, positions, table,
                                   partial + notes_bytes, scratch, n_head, n_head_kv, n_cells,
                                   log2_of(block_size), factor, softcap, max_bias, q_stride)  # fmt: skip
                left -= tokens

    return attention_shared
