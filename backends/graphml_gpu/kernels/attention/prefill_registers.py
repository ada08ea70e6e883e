"""Paged attention for many tokens on devices with subgroups: tiles of scores and of values in registers.

A workgroup takes a head and a tile of tokens, and walks over tiles of positions, as in `attention_tiles`.
ACROSS neighbours share four tokens: each has their scores with every ACROSS-th key, and their sums of every
ACROSS-th four of values. So the softmax is made by shuffles, and only weights pass through shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from graphml_gpu.kernels.attention.cache_loads import load_f32
from graphml_gpu.kernels.attention.fetched_rows import (
    WIDE_PAIRS,
    UnitLoad,
    fetch,
    four_of,
    fours_at_once,
    fours_of,
    kept_as,
    kept_of,
    units_of,
)
from graphml_gpu.kernels.attention.parts import (
    cell_of,
    finish_score,
    one_for_none,
    slope,
    store_four,
    weight_of,
)
from graphml_gpu.kernels.attention.prefill import load_queries, note_rows, run_of
from graphml_gpu.kernels.attention.split_records import divided
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    ValueType,
    Write,
    barrier,
    cluster_max,
    cluster_sum,
    dot,
    f32,
    f32x4,
    function,
    group_id,
    i32,
    kernel,
    local_id,
    num_groups,
    private_array,
    select,
    shared_array,
    u32,
    unroll,
)

QUAD = 4
"""Tokens whose scores and sums an invocation has."""


def apart(width: int) -> int:
    """Fours from one row of a tile in shared memory to the next: odd, so that neighbours use other banks."""
    return fours_of(width) | 1


def tile_fetches(width: int, tile: int, group: int) -> int:
    """Units of a tile that an invocation fetches."""
    return -(-tile * units_of(width) // group)


def shared_bytes(d: int, d_v: int, rows: int, tile: int) -> int:
    """Shared memory of a workgroup with a tile of `rows` tokens and `tile` positions."""
    keys_or_values = tile * max(apart(d), apart(d_v))
    queries, weights = rows * fours_of(d) + rows // QUAD, tile * (rows // QUAD | 1)
    return 16 * (queries + keys_or_values + weights) + 12 * rows + 16  # and what `uniform` takes


@function
def fetch_tile(
    cache: Any, kept: Any, table: Read[i32], list_start: u32, start: u32, end: u32, kv_head: u32,
    n_cells: u32, ELEMENT: Any, WIDTH: int, N_HEAD_KV: int, BLOCK: int, TILE: int, GROUP: int, LOAD: UnitLoad,
) -> None:  # fmt: skip
    """Fetch this invocation's units of rows of positions from `start` on, the last one's beyond `end`."""
    units = units_of(WIDTH)
    for part in unroll(tile_fetches(WIDTH, TILE, GROUP)):
        i = local_id(0) + part * GROUP
        position = min(start + i // units, max(end, 1) - 1)
        cell = cell_of(table, list_start, position, n_cells, BLOCK)
        fetch(cache, kept, part, cell * N_HEAD_KV + kv_head, i % units, ELEMENT, WIDTH, LOAD)


@function
def store_tile(
    tile: Array[f32x4], kept: Any, ELEMENT: Any, WIDTH: int, TILE: int, GROUP: int, LOAD: UnitLoad
) -> None:
    """Bring to shared memory what `fetch_tile` has kept."""
    units = units_of(WIDTH)
    for part in unroll(tile_fetches(WIDTH, TILE, GROUP)):
        i = local_id(0) + part * GROUP
        if i < TILE * units:
            at = i // units * apart(WIDTH) + i % units * fours_at_once(WIDTH)
            for four in unroll(fours_at_once(WIDTH)):
                tile[at + four] = four_of(kept, part, four, ELEMENT, WIDTH, LOAD)


@function
def multiply_tile(
    keys: Array[f32x4], queries: Array[f32x4], scores: Array[f32], quad: u32, lane: u32,
    D: int, ACROSS: int, TILE: int,
) -> None:  # fmt: skip
    """scores[b, a] = query a of the quad times key lane + b * ACROSS."""
    each, fours = TILE // ACROSS, fours_of(D)
    mine = private_array(f32x4, QUAD)
    for i in unroll(each * QUAD):
        scores[i] = 0.0
    for four in range(fours):
        for a in unroll(QUAD):
            mine[a] = queries[(quad * QUAD + a) * fours + quad + four]
        for b in unroll(each):
            key = keys[(lane + b * ACROSS) * apart(D) + four]
            for a in unroll(QUAD):
                scores[b * QUAD + a] = scores[b * QUAD + a] + dot(mine[a], key)


@function
def weigh_quad(
    scores: Array[f32], tops: Array[f32], totals: Array[f32], corrections: Array[f32], lows: Array[u32],
    highs: Array[u32], positions: Array[f32], start: u32, quad: u32, lane: u32, begin: u32, stop: u32,
    scale: f32, softcap: f32, slope: f32, ACROSS: int, TILE: int, SOFTCAP: bool, ALIBI: bool,
) -> None:  # fmt: skip
    """Make products weights: 0 but for what a row from begin to stop - 1 sees. All must call it."""
    each = TILE // ACROSS
    for a in unroll(QUAD):
        row = quad * QUAD + a
        low = select(row >= begin and row < stop, lows[row], 0)
        high = select(row >= begin and row < stop, highs[row], 0)
        highest = f32(-math.inf)
        for b in unroll(each):
            at = start + lane + b * ACROSS
            distance = positions[a] - f32(at) if ALIBI else f32(0.0)
            score = finish_score(scores[b * QUAD + a], scale, softcap, slope, distance, SOFTCAP, ALIBI)
            score = select(at >= low and at < high, score, -math.inf)
            scores[b * QUAD + a] = score
            highest = max(highest, score)
        top = max(tops[a], cluster_max(highest, ACROSS))
        # Nothing seen: nothing changes, and what is there stays as it is, be it NaN.
        correction = select(top == tops[a], 1.0, weight_of(tops[a], top))
        total = totals[a] * correction
        for b in unroll(each):
            weight = weight_of(scores[b * QUAD + a], top)
            scores[b * QUAD + a] = weight
            total += weight
        tops[a] = top
        totals[a] = total
        corrections[a] = correction


@function
def add_values_of_tile(
    values: Array[f32x4], weights: Array[f32x4], sums: Array[f32x4], wide: u32, quad: u32, lane: u32,
    DV: int, ACROSS: int, QUADS: int, GUARD: bool,
) -> None:  # fmt: skip
    """sums[part, a] += weighted values of the tile's `wide` rows. GUARD: a weight of 0 means not seen."""
    fours = fours_of(DV)
    for i in range(wide):
        four_weights = weights[i * (QUADS | 1) + quad]
        for part in unroll((fours + ACROSS - 1) // ACROSS):
            column = min(lane + part * ACROSS, fours - 1)
            value = values[i * apart(DV) + column]
            for a in unroll(QUAD):
                at = part * QUAD + a
                if GUARD:
                    weight = four_weights[a]
                    sums[at] = sums[at] + select(weight == 0.0, f32x4(0.0), value * weight)
                else:
                    sums[at] = sums[at] + value * four_weights[a]


@function
def leave_quad(
    out: Write[f32], sinks: Read[f32], sums: Array[f32x4], tops: Array[f32], totals: Array[f32],
    lows: Array[u32], highs: Array[u32], first: u32, count: u32, head: u32, quad: u32, lane: u32,
    DV: int, N_HEAD: int, ACROSS: int, SINKS: bool,
) -> None:  # fmt: skip
    """Write the values of four tokens, divided by the sums of weights. All must call it."""
    fours = fours_of(DV)
    for a in unroll(QUAD):
        row = quad * QUAD + a
        total = cluster_sum(totals[a], ACROSS) + one_for_none(lows[row], highs[row])
        if row < count:
            for part in unroll((fours + ACROSS - 1) // ACROSS):
                column = lane + part * ACROSS
                if column < fours:
                    value = divided(sums[part * QUAD + a], total, tops[a], sinks, head, SINKS)
                    store_four(out, ((first + row) * N_HEAD + head) * DV, column, value, DV)


def _attention_registers(k_element: Any, v_element: Any) -> Kernel:
    """The kernel for keys and values bound as arrays of a type each."""

    @kernel
    def attention_registers(
        q: Read[f32], k: Read[k_element], v: Read[v_element], positions: Read[i32], sequences: Read[i32],
        lengths: Read[i32], table: Read[i32], sinks: Read[f32], out: Write[f32],
        tokens: u32, table_stride: u32, n_sequences: u32, room: u32, n_cells: u32, window: u32, scale: f32,
        softcap: f32, bias_step: f32, lower: u32,
        *, D: int, DV: int, N_HEAD: int, N_HEAD_KV: int, BLOCK: int, ACROSS: int = 8, TILE: int = 32,
        WINDOW: bool = False, CHUNK: bool = False, SOFTCAP: bool = False, ALIBI: bool = False,
        SINKS: bool = False, CAUSAL: bool = True, LOAD_K: UnitLoad = load_f32, LOAD_V: UnitLoad = load_f32,
        GROUP: int = 128,
    ) -> None:  # fmt: skip
        """As `attention_tiles`; a workgroup (head, tile of tokens), the last tokens first: they see the most.

        ACROSS divides TILE; a tile has 4 * GROUP / ACROSS tokens.
        """
        quads = GROUP // ACROSS
        rows = quads * QUAD
        head, first = group_id(0), (num_groups(1) - 1 - group_id(1)) * rows
        count, kv_head = min(tokens - first, rows), head // (N_HEAD // N_HEAD_KV)
        quad, lane = local_id(0) // ACROSS, local_id(0) % ACROSS
        lows, highs, runs = shared_array(u32, rows), shared_array(u32, rows), shared_array(u32, rows)
        queries = shared_array(f32x4, rows * fours_of(D) + quads)
        note_rows(
            lows, highs, runs, positions, sequences, lengths, first, count, window, n_sequences, room,
            rows, GROUP, WINDOW, CHUNK, CAUSAL,
        )  # fmt: skip
        load_queries(queries, q, first, count, head, D, N_HEAD, rows, GROUP, PADDING=1)
        barrier()
        tile = shared_array(f32x4, TILE * max(apart(D), apart(DV)))
        weights = shared_array(f32x4, TILE * (quads | 1))
        held = (fours_of(DV) + ACROSS - 1) // ACROSS * QUAD
        keys = private_array(kept_as(k_element), tile_fetches(D, TILE, GROUP) * kept_of(k_element, D))
        values = private_array(kept_as(v_element), tile_fetches(DV, TILE, GROUP) * kept_of(v_element, DV))
        scores, sums = private_array(f32, TILE // ACROSS * QUAD), private_array(f32x4, held)
        tops, totals = private_array(f32, QUAD), private_array(f32, QUAD)
        corrections, places = private_array(f32, QUAD), private_array(f32, QUAD)
        for i in unroll(held):
            sums[i] = f32x4(0.0)
        for a in unroll(QUAD):
            tops[a] = -math.inf
            totals[a] = 0.0
            if ALIBI:
                places[a] = f32(positions[first + min(quad * QUAD + a, count - 1)])
        my_slope = slope(head, bias_step, lower) if ALIBI else f32(0.0)
        begin = u32(0)
        while begin < count:
            stop, low, high, shared_low, shared_high = run_of(lows, highs, runs, begin, count)
            whole = begin == 0 and stop == count
            list_start = runs[begin] * table_stride
            fetch_tile(
                k, keys, table, list_start, low, high, kv_head, n_cells, k_element, D, N_HEAD_KV, BLOCK, TILE,
                GROUP, LOAD_K,
            )  # fmt: skip
            for start in range(low, high, TILE):
                store_tile(tile, keys, k_element, D, TILE, GROUP, LOAD_K)
                barrier()
                fetch_tile(
                    v, values, table, list_start, start, high, kv_head, n_cells, v_element, DV, N_HEAD_KV,
                    BLOCK, TILE, GROUP, LOAD_V,
                )  # fmt: skip
                multiply_tile(tile, queries, scores, quad, lane, D, ACROSS, TILE)
                weigh_quad(
                    scores, tops, totals, corrections, lows, highs, places, start, quad, lane, begin, stop,
                    scale, softcap, my_slope, ACROSS, TILE, SOFTCAP, ALIBI,
                )  # fmt: skip
                for b in unroll(TILE // ACROSS):
                    weights[(lane + b * ACROSS) * (quads | 1) + quad] = f32x4(
                        scores[b * QUAD], scores[b * QUAD + 1], scores[b * QUAD + 2], scores[b * QUAD + 3]
                    )  # fmt: skip
                for i in unroll(held):
                    sums[i] = sums[i] * corrections[i % QUAD]
                barrier()
                store_tile(tile, values, v_element, DV, TILE, GROUP, LOAD_V)
                barrier()
                fetch_tile(
                    k, keys, table, list_start, start + TILE, high, kv_head, n_cells, k_element, D, N_HEAD_KV,
                    BLOCK, TILE, GROUP, LOAD_K,
                )  # fmt: skip
                wide = min(high - start, TILE)
                if whole and start >= shared_low and start + wide <= shared_high:
                    add_values_of_tile(tile, weights, sums, wide, quad, lane, DV, ACROSS, quads, GUARD=False)
                else:
                    add_values_of_tile(tile, weights, sums, wide, quad, lane, DV, ACROSS, quads, GUARD=True)
                barrier()
            begin = stop
        leave_quad(
            out, sinks, sums, tops, totals, lows, highs, first, count, head, quad, lane,
            DV, N_HEAD, ACROSS, SINKS,
        )  # fmt: skip

    return attention_registers


ATTENTION_REGISTERS: Mapping[tuple[ValueType, ValueType], Kernel] = {
    pair: _attention_registers(*pair) for pair in WIDE_PAIRS
}
"""What keys and values are bound as arrays of -> kernel."""
