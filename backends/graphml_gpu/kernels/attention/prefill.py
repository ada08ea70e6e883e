"""Paged attention for many tokens: a workgroup takes a head and a tile of tokens, and walks over positions.

Tokens of one sequence that stand together in the tile are a run: they share the keys and values that are
read. Softmax is made on the way, as in `attention` (FlashAttention, Dao 2022, arXiv:2205.14135).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from graphml_gpu.kernels.attention.cache_loads import PAIRS, CacheLoad, load_f32
from graphml_gpu.kernels.attention.parts import (
    find_cells,
    finish_score,
    list_number,
    load_query,
    one_for_none,
    seen,
    slope,
    store_four,
    weight_of,
)
from graphml_gpu.kernels.attention.split_records import divided
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    ValueType,
    Write,
    barrier,
    dot,
    f32,
    f32x4,
    function,
    group_id,
    i32,
    kernel,
    local_id,
    private_array,
    select,
    shared_array,
    u32,
    u32x4,
    uniform,
    unroll,
)

STAGED = 8
"""Fours of each key that are brought to shared memory at a time."""
QUAD = 4
"""Rows of queries that an invocation multiplies with a key."""


TILE_POSITIONS = 32
"""Positions that a workgroup has at a time."""


def tile_turns(d: int, rows: int, group: int) -> int:
    """Turns of loops of a tile of positions, for heads of d and `rows` tokens."""
    staged = -(-d // (4 * STAGED)) * (TILE_POSITIONS * STAGED // group + STAGED + 1)
    return staged + 2 * (TILE_POSITIONS * rows // group) + group // rows + TILE_POSITIONS + 4


@function
def multiply(
    k: Any, queries: Array[f32x4], cells: Array[u32], scores: Array[f32], kv_head: u32, fours: u32,
    D: int, N_HEAD_KV: int, ROWS: int, TILE: int, GROUP: int, LOAD: CacheLoad,
) -> None:  # fmt: skip
    """scores[i, row] = query of the row times key of cell i. All must call it."""
    keys = shared_array(f32x4, STAGED * (TILE + 1))  # one more, so that neighbours are in other banks
    each = max(TILE * (ROWS // QUAD) // GROUP, 1)
    rows, first = local_id(0) % (ROWS // QUAD) * QUAD, local_id(0) // (ROWS // QUAD)
    sums = private_array(f32, QUAD * each)
    for i in unroll(QUAD * each):
        sums[i] = 0.0
    for begin in range(0, fours, STAGED):
        for i in range(local_id(0), TILE * STAGED, GROUP):
            if begin + i % STAGED < fours:
                row = cells[i // STAGED] * N_HEAD_KV + kv_head
                keys[i % STAGED * (TILE + 1) + i // STAGED] = LOAD(k, row, begin + i % STAGED, D)
        barrier()
        if first < TILE:
            for four in range(min(fours - begin, STAGED)):
                for b in unroll(each):
                    key = keys[four * (TILE + 1) + first + b * (TILE // each)]
                    for a in unroll(QUAD):
                        sums[a * each + b] += dot(queries[(rows + a) * fours + begin + four], key)
        barrier()
    if first < TILE:
        for b in unroll(each):
            for a in unroll(QUAD):
                scores[(first + b * (TILE // each)) * ROWS + rows + a] = sums[a * each + b]
    barrier()


@function
def weigh(
    scores: Array[f32], maxima: Array[f32], corrections: Array[f32], top: f32, total: f32, start: u32,
    count: u32, low: u32, high: u32, position: f32, scale: f32, softcap: f32, slope: f32,
    ROWS: int, GROUP: int, SOFTCAP: bool, ALIBI: bool,
) -> tuple[f32, f32]:  # fmt: skip
    """Make products weights: 0 but for positions from low to high - 1, which this invocation's row sees.

    Gives the row's largest score so far, and the invocation's share of the sum of its weights.
    """
    row, member = local_id(0) % ROWS, local_id(0) // ROWS
    highest = f32(-math.inf)
    for i in range(member, count, GROUP // ROWS):
        distance = position - f32(start + i)
        score = finish_score(scores[i * ROWS + row], scale, softcap, slope, distance, SOFTCAP, ALIBI)
        score = select(start + i >= low and start + i < high, score, -math.inf)
        scores[i * ROWS + row] = score
        highest = max(highest, score)
    maxima[member * ROWS + row] = highest
    barrier()
    new_top = top
    for j in range(GROUP // ROWS):
        new_top = max(new_top, maxima[j * ROWS + row])
    # Nothing seen: nothing changes, and what is there stays as it is, be it NaN.
    correction = select(new_top == top, 1.0, weight_of(top, new_top))
    new_total = total * correction
    for i in range(member, count, GROUP // ROWS):
        weight = weight_of(scores[i * ROWS + row], new_top)
        scores[i * ROWS + row] = weight
        new_total += weight
    if member == 0:
        corrections[row] = correction
    barrier()
    return new_top, new_total


@function
def add_rows(
    v: Any, sums: Array[f32x4], weights: Array[f32], cells: Array[u32], kv_head: u32, count: u32,
    column: u32, rows: u32, first: u32,
    DV: int, N_HEAD_KV: int, ROWS: int, EACH: int, LOAD: CacheLoad, GUARD: bool,
) -> None:  # fmt: skip
    """sums[first + a] += weighted values of a column, for EACH rows. GUARD: a weight of 0 means not seen."""
    for i in range(count):
        value = LOAD(v, cells[i] * N_HEAD_KV + kv_head, column, DV)
        for a in unroll(EACH):
            weight = weights[i * ROWS + rows + a]
            if GUARD:
                sums[first + a] += select(weight == 0.0, f32x4(0.0), value * weight)
            else:
                sums[first + a] += value * weight


@function
def add_tile(
    v: Any, sums: Array[f32x4], weights: Array[f32], corrections: Array[f32], cells: Array[u32],
    kv_head: u32, count: u32, all_seen: Any,
    DV: int, N_HEAD_KV: int, ROWS: int, EACH: int, GROUP: int, LOAD: CacheLoad,
) -> None:  # fmt: skip
    """sums = sums * correction + weighted values, for the columns and EACH rows of this invocation."""
    fours = (DV + 3) // 4
    units = fours * (ROWS // EACH)
    for part in unroll((units + GROUP - 1) // GROUP):
        unit = local_id(0) + part * GROUP
        if unit < units:
            column, rows = unit % fours, unit // fours * EACH
            for a in unroll(EACH):
                sums[part * EACH + a] = sums[part * EACH + a] * corrections[rows + a]
            if all_seen:
                add_rows(
                    v, sums, weights, cells, kv_head, count, column, rows, u32(part * EACH),
                    DV, N_HEAD_KV, ROWS, EACH, LOAD, GUARD=False,
                )  # fmt: skip
            else:
                add_rows(
                    v, sums, weights, cells, kv_head, count, column, rows, u32(part * EACH),
                    DV, N_HEAD_KV, ROWS, EACH, LOAD, GUARD=True,
                )  # fmt: skip
    barrier()


@function
def run_of(
    lows: Array[u32], highs: Array[u32], runs: Array[u32], begin: u32, count: u32
) -> tuple[u32, u32, u32, u32, u32]:
    """The rows from `begin` on that have its sequence.

    Gives their end, the first position that one of them sees and the end of those, and the same of the
    positions that all of them see. All must call it.
    """
    stop, low, high = begin + 1, lows[begin], highs[begin]
    shared_low, shared_high = low, high
    while stop < count:
        if runs[stop] != runs[begin]:
            break
        low, shared_low = min(low, lows[stop]), max(shared_low, lows[stop])
        high, shared_high = max(high, highs[stop]), min(shared_high, highs[stop])
        stop += 1
    run = uniform(u32x4(stop, low, high, 0))  # loops with barriers go as far as it says
    return run.x, run.y, run.z, shared_low, shared_high


@function
def note_rows(
    lows: Array[u32], highs: Array[u32], runs: Array[u32],
    positions: Read[i32], sequences: Read[i32], lengths: Read[i32], first: u32, count: u32,
    window: u32, n_sequences: u32, room: u32, ROWS: int, GROUP: int, WINDOW: bool, CHUNK: bool, CAUSAL: bool,
) -> None:  # fmt: skip
    """Bring what the tile's tokens see to shared memory."""
    for row in range(local_id(0), ROWS, GROUP):
        token = first + min(row, count - 1)
        low, high = seen(
            sequences, lengths, token, positions[token], window, n_sequences, room, WINDOW, CHUNK, CAUSAL
        )
        lows[row] = low
        highs[row] = high
        runs[row] = list_number(sequences, token, n_sequences)


@function
def load_queries(
    queries: Array[f32x4], q: Read[f32], first: u32, count: u32, head: u32,
    D: int, N_HEAD: int, ROWS: int, GROUP: int, PADDING: int = 0,
) -> None:  # fmt: skip
    """Bring the tile's queries to shared memory, each four rows PADDING fours further."""
    fours = (D + 3) // 4
    for i in range(local_id(0), ROWS * fours, GROUP):
        token = first + min(i // fours, count - 1)
        queries[i + i // (fours * 4) * PADDING] = load_query(q, token * N_HEAD + head, i % fours, D)


@function
def leave_rows(
    out: Write[f32], sinks: Read[f32], sums: Array[f32x4], maxima: Array[f32], tops: Array[f32],
    lows: Array[u32], highs: Array[u32], top: f32, total: f32, first: u32, count: u32, head: u32,
    DV: int, N_HEAD: int, ROWS: int, EACH: int, GROUP: int, SINKS: bool,
) -> None:  # fmt: skip
    """Write the tile's values, divided by the sums of weights. All must call it."""
    fours = (DV + 3) // 4
    units = fours * (ROWS // EACH)
    maxima[local_id(0)] = total
    if local_id(0) < ROWS:
        tops[local_id(0)] = top
    barrier()
    for part in unroll((units + GROUP - 1) // GROUP):
        unit = local_id(0) + part * GROUP
        for a in unroll(EACH):
            row = unit // fours * EACH + a
            if unit < units and row < count:
                weight = one_for_none(lows[row], highs[row])
                for j in range(GROUP // ROWS):
                    weight += maxima[j * ROWS + row]
                value = divided(sums[part * EACH + a], weight, tops[row], sinks, head, SINKS)
                store_four(out, ((first + row) * N_HEAD + head) * DV, unit % fours, value, DV)


def _attention_tiles(k_element: Any, v_element: Any) -> Kernel:
    """The kernel for keys and values bound as arrays of a type each."""

    @kernel
    def attention_tiles(
        q: Read[f32], k: Read[k_element], v: Read[v_element], positions: Read[i32], sequences: Read[i32],
        lengths: Read[i32], table: Read[i32], sinks: Read[f32], out: Write[f32],
        tokens: u32, table_stride: u32, n_sequences: u32, room: u32, n_cells: u32, window: u32, scale: f32,
        softcap: f32, bias_step: f32, lower: u32, fours: u32,
        *, D: int, DV: int, N_HEAD: int, N_HEAD_KV: int, BLOCK: int, ROWS: int = 16,
        EACH: int = 4, TILE: int = TILE_POSITIONS, WINDOW: bool = False, CHUNK: bool = False,
        SOFTCAP: bool = False, ALIBI: bool = False, SINKS: bool = False, CAUSAL: bool = True,
        LOAD_K: CacheLoad = load_f32, LOAD_V: CacheLoad = load_f32, GROUP: int = 64,
    ) -> None:  # fmt: skip
        """As `attention`, for `tokens` tokens; a workgroup (tile of ROWS tokens, head).

        fours: of a key; a scalar, since PoCL 3.1 makes wrong code of loops of barriers whose length it knows.
        ROWS is a multiple of 4 and divides GROUP; an invocation adds up values for EACH of the rows.
        """
        assert None not in (k_element, v_element)  # so that the annotations know them
        first, head = group_id(0) * ROWS, group_id(1)
        count, kv_head = min(tokens - first, ROWS), head // (N_HEAD // N_HEAD_KV)
        lows, highs, runs = shared_array(u32, ROWS), shared_array(u32, ROWS), shared_array(u32, ROWS)
        queries = shared_array(f32x4, ROWS * ((D + 3) // 4))
        note_rows(
            lows, highs, runs, positions, sequences, lengths, first, count, window, n_sequences, room,
            ROWS, GROUP, WINDOW, CHUNK, CAUSAL,
        )  # fmt: skip
        load_queries(queries, q, first, count, head, D, N_HEAD, ROWS, GROUP)
        barrier()
        cells = shared_array(u32, TILE)
        scores = shared_array(f32, TILE * ROWS)
        maxima = shared_array(f32, GROUP)
        corrections = shared_array(f32, ROWS)
        held = ((DV + 3) // 4 * (ROWS // EACH) + GROUP - 1) // GROUP * EACH
        sums = private_array(f32x4, held)
        for i in unroll(held):
            sums[i] = f32x4(0.0)
        my_slope = slope(head, bias_step, lower) if ALIBI else f32(0.0)
        top, total = f32(-math.inf), f32(0.0)
        row, begin = local_id(0) % ROWS, u32(0)
        position = f32(positions[first + min(row, count - 1)]) if ALIBI else f32(0.0)
        while begin < count:
            stop, low, high, shared_low, shared_high = run_of(lows, highs, runs, begin, count)
            mine = row >= begin and row < stop
            whole = begin == 0 and stop == count
            for start in range(low, high, TILE):
                wide = min(high - start, TILE)
                find_cells(cells, table, runs[begin] * table_stride, start, high, n_cells, BLOCK, TILE, GROUP)
                barrier()
                multiply(k, queries, cells, scores, kv_head, fours, D, N_HEAD_KV, ROWS, TILE, GROUP, LOAD_K)
                top, total = weigh(
                    scores, maxima, corrections, top, total, start, wide,
                    select(mine, lows[row], 0), select(mine, highs[row], 0), position, scale, softcap,
                    my_slope, ROWS, GROUP, SOFTCAP, ALIBI,
                )  # fmt: skip
                add_tile(
                    v, sums, scores, corrections, cells, kv_head, wide,
                    whole and start >= shared_low and start + wide <= shared_high,
                    DV, N_HEAD_KV, ROWS, EACH, GROUP, LOAD_V,
                )  # fmt: skip
            begin = stop
        leave_rows(
            out, sinks, sums, maxima, corrections, lows, highs, top, total, first, count, head,
            DV, N_HEAD, ROWS, EACH, GROUP, SINKS,
        )  # fmt: skip

    return attention_tiles


ATTENTION_TILES: Mapping[tuple[ValueType, ValueType], Kernel] = {
    pair: _attention_tiles(*pair) for pair in PAIRS
}
"""What keys and values are bound as arrays of -> kernel."""
