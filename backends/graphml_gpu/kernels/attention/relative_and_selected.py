"""Attention with a bias for each bucket of distances, and to chosen blocks alone: scores that are touched up.

A workgroup takes a token and heads, and walks over positions tile by tile as `attention` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from graphml_gpu.kernels.attention.cache_loads import PAIRS, CacheLoad, load_f32
from graphml_gpu.kernels.attention.decode import (
    TEAM,
    add_planes,
    add_totals,
    add_values,
    score_tile,
    weigh_tile,
)
from graphml_gpu.kernels.attention.parts import (
    cell_of,
    find_cells,
    list_number,
    load_query,
    one_for_none,
    seen,
    store_four,
)
from graphml_gpu.kernels.attention.split_records import divided
from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    ValueType,
    Write,
    barrier,
    f32,
    f32x4,
    function,
    group_id,
    group_max,
    i32,
    isnan,
    kernel,
    local_id,
    private_array,
    select,
    shared_array,
    table,
    u32,
    uniform,
    unroll,
)


@function
def _add_bias(
    scores: Array[f32], bias: Read[f32], start: u32, position: u32, head: u32, scale: f32,
    N_HEAD: int, TILE: int, BUCKETS: tuple[int, ...], AHEAD: int,
) -> None:  # fmt: skip
    """scores[i] = product * scale + the bias of how far position start + i lies from the token's."""
    buckets = table(u32, BUCKETS)
    i = local_id(0)
    if i < TILE:
        other = start + i
        far = select(other > position, other - position, position - other)
        bucket = buckets[min(far, len(BUCKETS) - 1)] + select(other > position, AHEAD, 0)
        scores[i] = scores[i] * scale + bias[bucket * N_HEAD + head]


def _relative(k_element: Any, v_element: Any) -> Kernel:
    """The kernel for keys and values bound as arrays of a type each."""

    @kernel
    def relative_attention(
        q: Read[f32], k: Read[k_element], v: Read[v_element], positions: Read[i32], sequences: Read[i32],
        lengths: Read[i32], block_table: Read[i32], bias: Read[f32], out: Write[f32],
        table_stride: u32, n_sequences: u32, room: u32, n_cells: u32, scale: f32, planes: u32,
        *, D: int, DV: int, N_HEAD: int, N_HEAD_KV: int, BLOCK: int, BUCKETS: tuple[int, ...], AHEAD: int,
        TILE: int = 64, LANES: int = 1, CAUSAL: bool = True, LOAD_K: CacheLoad = load_f32,
        LOAD_V: CacheLoad = load_f32, GROUP: int = 128,
    ) -> None:  # fmt: skip
        """As `attention`, with bias [buckets, N_HEAD] added to scores; a workgroup (head, token).

        BUCKETS: of distances back from 0 on, the last of all that are farther; AHEAD is added ahead.
        """
        assert None not in (k_element, v_element)  # so that the annotations know them
        head, token = group_id(0), group_id(1)
        kv_head = head // (N_HEAD // N_HEAD_KV)
        queries = shared_array(f32x4, (D + 3) // 4)
        for i in range(local_id(0), (D + 3) // 4, GROUP):
            queries[i] = load_query(q, token * N_HEAD + head, i, D)
        position = positions[token]
        first, end = seen(sequences, lengths, token, position, 0, n_sequences, room, False, False, CAUSAL)
        cells, scores = shared_array(u32, TILE), shared_array(f32, TILE)
        maxima, corrections = shared_array(f32, TEAM), shared_array(f32, 1)
        parts = ((DV + 3) // 4 + GROUP - 1) // GROUP
        sums = private_array(f32x4, parts)
        for part in unroll(parts):
            sums[part] = f32x4(0.0)
        top, total = f32(-math.inf), f32(0.0)
        row = list_number(sequences, token, n_sequences) * table_stride
        for start in range(first, end, TILE):
            count = min(end - start, TILE)
            find_cells(cells, block_table, row, start, end, n_cells, BLOCK, TILE, GROUP)
            barrier()
            score_tile(k, queries, cells, scores, kv_head, D, N_HEAD_KV, 1, TILE, LANES, GROUP, LOAD_K)
            barrier()
            _add_bias(scores, bias, start, u32(position), head, scale, N_HEAD, TILE, BUCKETS, AHEAD)
            barrier()
            top, total = weigh_tile(
                scores, maxima, corrections, top, total, count, 0.0, 1.0, 0.0, 0.0, 1, TILE, False, False
            )
            add_values(
                v, sums, scores, corrections, cells, kv_head, count, DV, N_HEAD_KV, 1, TILE, GROUP, LOAD_V
            )
            barrier()
        barrier()
        add_planes(sums, planes, DV, 1, GROUP)
        tops, weights = shared_array(f32, 1), shared_array(f32, 1)
        add_totals(tops, weights, maxima, top, total, 1)
        for part in unroll(parts):
            four = local_id(0) + part * GROUP
            if four < (DV + 3) // 4:
                store_four(
                    out,
                    (token * N_HEAD + head) * DV,
                    four,
                    sums[part] / (weights[0] + one_for_none(first, end)),
                    DV,
                )

    return relative_attention


@kernel
def unique_blocks(selected: Read[i32], out: Write[i32], count: u32, n: u32, *, GROUP: int = 64) -> None:
    """Each of the n numbers of a row, -1 where it stood in the row before. count: of all."""
    i = element_number()
    if i < count:
        number = selected[i]
        twice = u32(0)
        for other in range(i - i % n, i):
            if selected[other] == number:
                twice = 1
        out[i] = select(twice == 1, i32(-1), number)


@function
def _end_of_list(blocks: Read[i32], list_start: u32, n: u32, GROUP: int) -> u32:
    """The place after the last block of a list: early tokens have few. All must call it."""
    end = u32(0)
    for i in range(local_id(0), n, GROUP):
        if blocks[list_start + i] >= 0:
            end = i + 1
    return uniform(group_max(end))  # a loop with barriers goes as far


@function
def _find_chosen(
    cells: Array[u32], chosen: Array[u32], blocks: Read[i32], block_table: Read[i32], row: u32,
    list_start: u32, start: u32, total: u32, end: u32, n_cells: u32, BLOCK: int, SIZE: int, TILE: int,
) -> None:  # fmt: skip
    """Of places from `start` on in the blocks of a list: their cells, and 1 where the token sees them.

    end: of what the token sees.
    """
    i = local_id(0)
    if i < TILE:
        place = min(start + i, total - 1)
        number = blocks[list_start + place // SIZE]
        there = u32(number) * SIZE + place % SIZE
        is_seen = u32(number) <= end // SIZE and start + i < total and there < end
        cells[i] = cell_of(block_table, row, select(is_seen, there, 0), n_cells, BLOCK)
        chosen[i] = select(is_seen, u32(1), u32(0))


@function
def _hide(scores: Array[f32], chosen: Array[u32], HEADS: int, TILE: int) -> None:
    """Minus infinity for what the token does not see; infinity for NaN, so that all weights become NaN."""
    i = local_id(0)
    if i < TILE:
        for h in unroll(HEADS):
            score = scores[h * TILE + i]
            scores[h * TILE + i] = select(chosen[i] == 1, select(isnan(score), math.inf, score), -math.inf)


def _selected(k_element: Any, v_element: Any) -> Kernel:
    """The kernel for keys and values bound as arrays of a type each."""

    @kernel
    def selected_attention(
        q: Read[f32], k: Read[k_element], v: Read[v_element], positions: Read[i32], sequences: Read[i32],
        block_table: Read[i32], blocks: Read[i32], sinks: Read[f32], out: Write[f32],
        table_stride: u32, n_sequences: u32, room: u32, n_cells: u32, n: u32, scale: f32, planes: u32,
        *, D: int, DV: int, N_HEAD: int, N_HEAD_KV: int, N_LIST: int, BLOCK: int, SIZE: int, HEADS: int = 1,
        TILE: int = 64, LANES: int = 1, SINKS: bool = False, LOAD_K: CacheLoad = load_f32,
        LOAD_V: CacheLoad = load_f32, GROUP: int = 128,
    ) -> None:  # fmt: skip
        """As `attention`, to the positions of n blocks of SIZE; a workgroup (HEADS heads, token).

        blocks [tokens, N_LIST, n], of `unique_blocks`: a list for each of N_LIST equal parts of the heads.
        The HEADS of a workgroup share a list and a kv head.
        """
        assert None not in (k_element, v_element)  # so that the annotations know them
        head, token = group_id(0) * HEADS, group_id(1)
        kv_head = head // (N_HEAD // N_HEAD_KV)
        fours = (D + 3) // 4
        queries = shared_array(f32x4, HEADS * fours)
        for i in range(local_id(0), HEADS * fours, GROUP):
            queries[i] = load_query(q, token * N_HEAD + head + i // fours, i % fours, D)
        _, end = seen(sequences, sequences, token, positions[token], 0, n_sequences, room, False, False, True)
        cells, chosen = shared_array(u32, TILE), shared_array(u32, TILE)
        scores = shared_array(f32, HEADS * TILE)
        maxima, corrections = shared_array(f32, HEADS * TEAM), shared_array(f32, HEADS)
        parts = ((DV + 3) // 4 + GROUP - 1) // GROUP
        sums = private_array(f32x4, HEADS * parts)
        for i in unroll(HEADS * parts):
            sums[i] = f32x4(0.0)
        top, total = f32(-math.inf), f32(0.0)
        row = list_number(sequences, token, n_sequences) * table_stride
        list_start, mine = (token * N_LIST + head // (N_HEAD // N_LIST)) * n, u32(0)
        total_places = _end_of_list(blocks, list_start, n, GROUP) * SIZE
        for start in range(0, total_places, TILE):
            _find_chosen(
                cells, chosen, blocks, block_table, row, list_start, start, total_places, end,
                n_cells, BLOCK, SIZE, TILE,
            )  # fmt: skip
            barrier()
            mine = max(mine, chosen[min(local_id(0), TILE - 1)])
            score_tile(k, queries, cells, scores, kv_head, D, N_HEAD_KV, HEADS, TILE, LANES, GROUP, LOAD_K)
            barrier()
            _hide(scores, chosen, HEADS, TILE)
            barrier()
            top, total = weigh_tile(
                scores, maxima, corrections, top, total, TILE, 0.0, scale, 0.0, 0.0, HEADS, TILE, False, False
            )
            add_values(
                v, sums, scores, corrections, cells, kv_head, TILE, DV, N_HEAD_KV, HEADS, TILE, GROUP, LOAD_V
            )
            barrier()
        barrier()
        add_planes(sums, planes, DV, HEADS, GROUP)
        tops, weights = shared_array(f32, HEADS), shared_array(f32, HEADS)
        add_totals(tops, weights, maxima, top, total, HEADS)
        more = one_for_none(0, group_max(mine))
        for h in unroll(HEADS):
            for part in unroll(parts):
                four = local_id(0) + part * GROUP
                if four < (DV + 3) // 4:
                    value = divided(
                        sums[h * parts + part], weights[h] + more, tops[h], sinks, head + h, SINKS
                    )
                    store_four(out, (token * N_HEAD + head + h) * DV, four, value, DV)

    return selected_attention


RELATIVE_ATTENTION: Mapping[tuple[ValueType, ValueType], Kernel] = {pair: _relative(*pair) for pair in PAIRS}
SELECTED_ATTENTION: Mapping[tuple[ValueType, ValueType], Kernel] = {pair: _selected(*pair) for pair in PAIRS}
"""What keys and values are bound as arrays of -> kernel."""
