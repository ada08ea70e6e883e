"""Paged attention for few tokens on devices with subgroups: teams of neighbours walk over positions alone.

A workgroup takes a token, heads that share keys and values, and a split of the positions, as in `attention`.
Each team of LANES neighbours takes positions of its own, with a softmax of its own. Its lanes share a row by
columns, so that they exchange only the sum of a product, by shuffles. The loop has no barriers, and the keys
and values of several positions are fetched before any is used. The teams are merged once, at the end.
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
    fetches,
    four_of,
    fours_at_once,
    fours_of,
    kept_as,
    kept_of,
    units_of,
)
from graphml_gpu.kernels.attention.merge_teams import merge_teams
from graphml_gpu.kernels.attention.parts import (
    cell_of,
    finish_score,
    list_number,
    load_query,
    one_for_none,
    seen,
    slope,
    split_size,
    weight_of,
)
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    ValueType,
    Write,
    barrier,
    cluster_sum,
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
    unroll,
)


@function
def my_unit(lane: u32, part: int, WIDTH: int, LANES: int) -> u32:
    """The unit of a row that a lane fetches as its number `part`; the last one where it has none."""
    if (part + 1) * LANES <= units_of(WIDTH):
        return lane + part * LANES
    return min(lane + part * LANES, units_of(WIDTH) - 1)


@function
def find_rows(
    rows: Array[u32], table: Read[i32], list_start: u32, first: u32, end: u32, kv_head: u32, n_cells: u32,
    BLOCK: int, N_HEAD_KV: int, AHEAD: int, TEAMS: int,
) -> None:  # fmt: skip
    """The rows of keys of this team's next AHEAD positions, from `first` on; of the last one beyond `end`."""
    for a in unroll(AHEAD):
        position = min(first + a * TEAMS, max(end, 1) - 1)
        rows[a] = cell_of(table, list_start, position, n_cells, BLOCK) * N_HEAD_KV + kv_head


@function
def fetch_rows(
    cache: Any, kept: Any, rows: Array[u32], lane: u32,
    ELEMENT: Any, WIDTH: int, LANES: int, AHEAD: int, LOAD: UnitLoad,
) -> None:  # fmt: skip
    """Fetch this lane's columns of AHEAD rows."""
    each = fetches(WIDTH, LANES)
    for a in unroll(AHEAD):
        for part in unroll(each):
            unit = my_unit(lane, part, WIDTH, LANES)
            fetch(cache, kept, a * each + part, rows[a], unit, ELEMENT, WIDTH, LOAD)


@function
def multiply_rows(
    kept: Any, queries: Array[f32x4], scores: Array[f32], lane: u32,
    ELEMENT: Any, D: int, HEADS: int, LANES: int, AHEAD: int, LOAD: UnitLoad,
) -> None:  # fmt: skip
    """scores[a, head] = query of the head times key of row a, for all lanes of the team."""
    each, fours = fetches(D, LANES), fours_of(D)
    for a in unroll(AHEAD):
        for h in unroll(HEADS):
            scores[a * HEADS + h] = 0.0
        for part in unroll(each):
            unit = my_unit(lane, part, D, LANES)
            for i in unroll(fours_at_once(D)):
                key = four_of(kept, a * each + part, i, ELEMENT, D, LOAD)
                for h in unroll(HEADS):
                    product = dot(queries[h * fours + unit * fours_at_once(D) + i], key)
                    if (part + 1) * LANES <= units_of(D):
                        scores[a * HEADS + h] += product
                    else:
                        scores[a * HEADS + h] += select(lane + part * LANES < units_of(D), product, 0.0)
        for h in unroll(HEADS):
            scores[a * HEADS + h] = cluster_sum(scores[a * HEADS + h], LANES)


@function
def weigh_rows(
    scores: Array[f32], tops: Array[f32], totals: Array[f32], corrections: Array[f32], slopes: Array[f32],
    first: u32, end: u32, position: i32, scale: f32, softcap: f32,
    HEADS: int, AHEAD: int, TEAMS: int, SOFTCAP: bool, ALIBI: bool, MASKED: bool,
) -> None:  # fmt: skip
    """Make products weights, with what the sums so far are to be multiplied with."""
    for h in unroll(HEADS):
        highest = tops[h]
        for a in unroll(AHEAD):
            at = first + a * TEAMS
            distance = f32(position) - f32(at)
            score = finish_score(
                scores[a * HEADS + h], scale, softcap, slopes[h] if ALIBI else 0.0, distance, SOFTCAP, ALIBI
            )
            if MASKED:
                score = select(at < end, score, -math.inf)
            scores[a * HEADS + h] = score
            highest = max(highest, score)
        corrections[h] = weight_of(tops[h], highest)
        totals[h] = totals[h] * corrections[h]
        for a in unroll(AHEAD):
            scores[a * HEADS + h] = weight_of(scores[a * HEADS + h], highest)
            totals[h] = totals[h] + scores[a * HEADS + h]
        tops[h] = highest


@function
def add_row(
    kept: Any, sums: Array[f32x4], weights: Array[f32], a: int,
    ELEMENT: Any, DV: int, HEADS: int, LANES: int, LOAD: UnitLoad,
) -> None:  # fmt: skip
    """sums[head, part] += weighted values of row a, in this lane's columns."""
    each = fetches(DV, LANES)
    for part in unroll(each):
        for i in unroll(fours_at_once(DV)):
            value = four_of(kept, a * each + part, i, ELEMENT, DV, LOAD)
            for h in unroll(HEADS):
                at = (h * each + part) * fours_at_once(DV) + i
                sums[at] = sums[at] + value * weights[a * HEADS + h]


@function
def take_rows(
    keys: Any, values: Any, queries: Array[f32x4], scores: Array[f32], sums: Array[f32x4], tops: Array[f32],
    totals: Array[f32], corrections: Array[f32], slopes: Array[f32], lane: u32, first: u32, end: u32,
    position: i32, scale: f32, softcap: f32, K_ELEMENT: Any, V_ELEMENT: Any,
    D: int, DV: int, HEADS: int, LANES: int, AHEAD: int, TEAMS: int, SOFTCAP: bool, ALIBI: bool,
    LOAD_K: UnitLoad, LOAD_V: UnitLoad, MASKED: bool,
) -> None:  # fmt: skip
    """Add AHEAD fetched positions, `first` and every TEAMS-th after it; MASKED: only those before `end`."""
    multiply_rows(keys, queries, scores, lane, K_ELEMENT, D, HEADS, LANES, AHEAD, LOAD_K)
    weigh_rows(
        scores, tops, totals, corrections, slopes, first, end, position, scale, softcap,
        HEADS, AHEAD, TEAMS, SOFTCAP, ALIBI, MASKED,
    )  # fmt: skip
    held = fetches(DV, LANES) * fours_at_once(DV)
    for i in unroll(HEADS * held):
        sums[i] = sums[i] * corrections[i // held]
    for a in unroll(AHEAD):
        if MASKED:
            if first + a * TEAMS < end:
                add_row(values, sums, scores, a, V_ELEMENT, DV, HEADS, LANES, LOAD_V)
        else:
            add_row(values, sums, scores, a, V_ELEMENT, DV, HEADS, LANES, LOAD_V)


def _attention_teams(k_element: Any, v_element: Any) -> Kernel:
    """The kernel for keys and values bound as arrays of a type each."""

    @kernel
    def attention_teams(
        q: Read[f32], k: Read[k_element], v: Read[v_element], positions: Read[i32], sequences: Read[i32],
        lengths: Read[i32], table: Read[i32], records: Write[f32], out: Write[f32],
        table_stride: u32, n_sequences: u32, room: u32, n_cells: u32, window: u32, scale: f32, softcap: f32,
        bias_step: f32, lower: u32, splits: u32,
        *, D: int, DV: int, N_HEAD: int, N_HEAD_KV: int, BLOCK: int, HEADS: int = 1, LANES: int = 4,
        AHEAD: int = 2, RECORDS: bool = False, LEAST: int = 64, WINDOW: bool = False, CHUNK: bool = False,
        SOFTCAP: bool = False, ALIBI: bool = False, SINKS: bool = False, CAUSAL: bool = True,
        LOAD_K: UnitLoad = load_f32, LOAD_V: UnitLoad = load_f32, GROUP: int = 128,
    ) -> None:  # fmt: skip
        """As `attention`. LANES neighbours are a team, which fetches AHEAD positions at a time.

        LANES: a power of two up to the smallest subgroup. LOAD_K, LOAD_V: a `CacheLoad`, or of u32x4 what
        unpacks four elements of two words.
        """
        each, fours = N_HEAD // N_HEAD_KV, fours_of(D)
        chunks = (each + HEADS - 1) // HEADS
        kv_head, token = group_id(0) // chunks, group_id(1)
        chunk = group_id(0) % chunks
        queries = shared_array(f32x4, HEADS * fours)
        for i in range(local_id(0), HEADS * fours, GROUP):
            head = kv_head * each + min(chunk * HEADS + i // fours, each - 1)
            queries[i] = load_query(q, token * N_HEAD + head, i % fours, D)
        position = positions[token]
        first, last = seen(
            sequences, lengths, token, position, window, n_sequences, room, WINDOW, CHUNK, CAUSAL
        )
        begin, end = first, last
        if RECORDS:
            share = split_size(last - first, splits, LEAST)
            begin = min(first + group_id(2) * share, last)
            end = min(begin + share, last)
        teams, held = GROUP // LANES, fetches(DV, LANES) * fours_at_once(DV)
        lane, team = local_id(0) % LANES, local_id(0) // LANES
        sums = private_array(f32x4, HEADS * held)
        for i in unroll(HEADS * held):
            sums[i] = f32x4(0.0)
        tops, totals = private_array(f32, HEADS), private_array(f32, HEADS)
        corrections, slopes = private_array(f32, HEADS), private_array(f32, HEADS)
        for h in unroll(HEADS):
            tops[h] = -math.inf
            totals[h] = 0.0
            if ALIBI:
                slopes[h] = slope(kv_head * each + min(chunk * HEADS + h, each - 1), bias_step, lower)
        list_start = list_number(sequences, token, n_sequences) * table_stride
        rows, scores = private_array(u32, AHEAD), private_array(f32, AHEAD * HEADS)
        each_k, each_v = (
            fetches(D, LANES) * kept_of(k_element, D),
            fetches(DV, LANES) * kept_of(v_element, DV),
        )
        keys = private_array(kept_as(k_element), AHEAD * each_k)
        values = private_array(kept_as(v_element), AHEAD * each_v)
        step = teams * AHEAD
        full = end - (end - begin) % step
        find_rows(
            rows, table, list_start, begin + team, end, kv_head, n_cells, BLOCK, N_HEAD_KV, AHEAD, teams
        )
        barrier()
        for start in range(begin, full, step):
            fetch_rows(k, keys, rows, lane, k_element, D, LANES, AHEAD, LOAD_K)
            fetch_rows(v, values, rows, lane, v_element, DV, LANES, AHEAD, LOAD_V)
            find_rows(
                rows, table, list_start, start + step + team, end, kv_head, n_cells, BLOCK, N_HEAD_KV, AHEAD,
                teams,
            )  # fmt: skip
            take_rows(
                keys, values, queries, scores, sums, tops, totals, corrections, slopes, lane, start + team,
                end, position, scale, softcap, k_element, v_element, D, DV, HEADS, LANES, AHEAD, teams,
                SOFTCAP, ALIBI, LOAD_K, LOAD_V, MASKED=False,
            )  # fmt: skip
        if full < end:
            fetch_rows(k, keys, rows, lane, k_element, D, LANES, AHEAD, LOAD_K)
            fetch_rows(v, values, rows, lane, v_element, DV, LANES, AHEAD, LOAD_V)
            take_rows(
                keys, values, queries, scores, sums, tops, totals, corrections, slopes, lane, full + team,
                end, position, scale, softcap, k_element, v_element, D, DV, HEADS, LANES, AHEAD, teams,
                SOFTCAP, ALIBI, LOAD_K, LOAD_V, MASKED=True,
            )  # fmt: skip
        merge_teams(
            records, out, tops, totals, sums, token * N_HEAD + kv_head * each, chunk * HEADS, each - 1,
            one_for_none(first, last), splits, DV, HEADS, LANES, GROUP, RECORDS, SINKS,
        )  # fmt: skip

    return attention_teams


ATTENTION_TEAMS: Mapping[tuple[ValueType, ValueType], Kernel] = {
    pair: _attention_teams(*pair) for pair in WIDE_PAIRS
}
"""What keys and values are bound as arrays of -> kernel."""
