"""Paged attention for few tokens: a workgroup takes a token, heads that share keys and values, and positions.

Softmax is made on the way (Milakov 2018, arXiv:1805.02867): weights are relative to the largest score so far.
Long contexts are split over workgroups (Flash-Decoding), of which each leaves a record (`split_records`).
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
    split_size,
    weight_of,
)
from graphml_gpu.kernels.attention.split_records import leave
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
    shared_array,
    u32,
    unroll,
)

TEAM = 16
"""Invocations that look after the softmax of one head."""


@function
def score_tile(
    k: Any, queries: Array[f32x4], cells: Array[u32], scores: Array[f32], kv_head: u32,
    D: int, N_HEAD_KV: int, HEADS: int, TILE: int, LANES: int, GROUP: int, LOAD: CacheLoad,
) -> None:  # fmt: skip
    """scores[head, i] = query of the head times key of cell i. LANES invocations share a key."""
    lane = local_id(0) % LANES
    sums = private_array(f32, HEADS)
    for step in range(0, TILE, GROUP // LANES):
        i = step + local_id(0) // LANES
        for h in unroll(HEADS):
            sums[h] = 0.0
        row = cells[i] * N_HEAD_KV + kv_head
        for four in range(lane, (D + 3) // 4, LANES):
            key = LOAD(k, row, four, D)
            for h in unroll(HEADS):
                sums[h] += dot(queries[h * ((D + 3) // 4) + four], key)
        for h in unroll(HEADS):
            total = cluster_sum(sums[h], LANES)
            if lane == 0:
                scores[h * TILE + i] = total


@function
def weigh_tile(
    scores: Array[f32], maxima: Array[f32], corrections: Array[f32], top: f32, total: f32, count: u32,
    before: f32, scale: f32, softcap: f32, slope: f32, HEADS: int, TILE: int, SOFTCAP: bool, ALIBI: bool,
) -> tuple[f32, f32]:  # fmt: skip
    """Make products weights; the largest score of this invocation's head so far, and its share of their sum.

    before: positions from the first of the tile to the token.
    """
    head, member = local_id(0) // TEAM, local_id(0) % TEAM
    if head < HEADS:
        highest = f32(-math.inf)
        for i in range(member, count, TEAM):
            distance = before - f32(i)
            score = finish_score(scores[head * TILE + i], scale, softcap, slope, distance, SOFTCAP, ALIBI)
            scores[head * TILE + i] = score
            highest = max(highest, score)
        maxima[head * TEAM + member] = highest
    barrier()
    new_top, new_total = top, total
    if head < HEADS:
        for j in range(TEAM):
            new_top = max(new_top, maxima[head * TEAM + j])
        correction = weight_of(top, new_top)
        new_total = total * correction
        for i in range(member, count, TEAM):
            weight = weight_of(scores[head * TILE + i], new_top)
            scores[head * TILE + i] = weight
            new_total += weight
        if member == 0:
            corrections[head] = correction
    barrier()
    return new_top, new_total


@function
def add_values(
    v: Any, sums: Array[f32x4], weights: Array[f32], corrections: Array[f32], cells: Array[u32], kv_head: u32,
    count: u32, DV: int, N_HEAD_KV: int, HEADS: int, TILE: int, GROUP: int, LOAD: CacheLoad,
) -> None:  # fmt: skip
    """sums[head, part] = sums * correction + weighted values of this invocation's columns and cells."""
    fours = (DV + 3) // 4
    planes, parts = max(GROUP // fours, 1), (fours + GROUP - 1) // GROUP
    column, plane = local_id(0) % min(fours, GROUP), local_id(0) // min(fours, GROUP)
    for h in unroll(HEADS):
        for part in unroll(parts):
            sums[h * parts + part] = sums[h * parts + part] * corrections[h]
    if plane < planes:
        for i in range(plane, count, planes):
            row = cells[i] * N_HEAD_KV + kv_head
            for part in unroll(parts):
                if column + part * GROUP < fours:
                    value = LOAD(v, row, column + part * GROUP, DV)
                    for h in unroll(HEADS):
                        sums[h * parts + part] += value * weights[h * TILE + i]


@function
def add_planes(sums: Array[f32x4], planes: u32, DV: int, HEADS: int, GROUP: int) -> None:
    """Add up the values of all invocations that have the same columns, in the first of them."""
    fours = (DV + 3) // 4
    column, mine = local_id(0) % min(fours, GROUP), local_id(0) // min(fours, GROUP)
    gathered = shared_array(f32x4, HEADS * fours)
    for plane in range(1, planes):
        if mine == plane:
            for h in unroll(HEADS):
                gathered[h * fours + column] = sums[h]
        barrier()
        if mine == 0:
            for h in unroll(HEADS):
                sums[h] += gathered[h * fours + column]
        barrier()


@function
def add_totals(
    tops: Array[f32], weights: Array[f32], shares: Array[f32], top: f32, total: f32, HEADS: int
) -> None:
    """Bring the largest score of each head and the sum of its weights to all. All must call it."""
    head, member = local_id(0) // TEAM, local_id(0) % TEAM
    if head < HEADS:
        shares[local_id(0)] = total
    barrier()
    if head < HEADS and member == 0:
        whole = f32(0.0)
        for j in range(TEAM):
            whole += shares[head * TEAM + j]
        weights[head] = whole
        tops[head] = top
    barrier()


def _attention(k_element: Any, v_element: Any) -> Kernel:
    """The kernel for keys and values bound as arrays of a type each."""

    @kernel
    def attention(
        q: Read[f32], k: Read[k_element], v: Read[v_element], positions: Read[i32], sequences: Read[i32],
        lengths: Read[i32], table: Read[i32], records: Write[f32], out: Write[f32],
        table_stride: u32, n_sequences: u32, room: u32, n_cells: u32, window: u32, scale: f32, softcap: f32,
        bias_step: f32, lower: u32, splits: u32, planes: u32,
        *, D: int, DV: int, N_HEAD: int, N_HEAD_KV: int, BLOCK: int, HEADS: int = 1, TILE: int = 64,
        LANES: int = 1, RECORDS: bool = False, LEAST: int = 64, WINDOW: bool = False, CHUNK: bool = False,
        SOFTCAP: bool = False, ALIBI: bool = False, SINKS: bool = False, CAUSAL: bool = True,
        LOAD_K: CacheLoad = load_f32, LOAD_V: CacheLoad = load_f32, GROUP: int = 128,
    ) -> None:  # fmt: skip
        """out[t, head] = weights of what token t sees, times values.

        q [T, N_HEAD, D]; k [cell, N_HEAD_KV, D]; v [cell, N_HEAD_KV, DV]; positions, sequences [T]; lengths
        [S]; table [S, table_stride]; out [T, N_HEAD, DV]. A token sees its sequence's cells up to its
        position if CAUSAL, else all `lengths` of them; those in `window` alone if WINDOW, in its chunk of
        `window` if CHUNK. A workgroup (kv head and part, token, split) has HEADS of the heads that share a
        kv head. With RECORDS, and SINKS or more splits than one, out is left to
        `combine_attention`: each leaves a record of its share of the
        positions, at least LEAST of them, in records [T, N_HEAD, splits, 2 + DV]. planes: GROUP over the
        fours of DV, at least 1; a scalar, since compilers write out loops of barriers whose length they know.
        """
        assert None not in (k_element, v_element)  # so that the annotations know them
        each = N_HEAD // N_HEAD_KV
        chunks = (each + HEADS - 1) // HEADS
        fours = (D + 3) // 4
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
        cells = shared_array(u32, TILE)
        scores = shared_array(f32, HEADS * TILE)
        maxima = shared_array(f32, HEADS * TEAM)
        corrections = shared_array(f32, HEADS)
        parts = ((DV + 3) // 4 + GROUP - 1) // GROUP
        sums = private_array(f32x4, HEADS * parts)
        for h in unroll(HEADS * parts):
            sums[h] = f32x4(0.0)
        mine = chunk * HEADS + min(local_id(0) // TEAM, HEADS - 1)
        my_slope = slope(kv_head * each + min(mine, each - 1), bias_step, lower) if ALIBI else f32(0.0)
        top, total = f32(-math.inf), f32(0.0)
        row = list_number(sequences, token, n_sequences) * table_stride
        for start in range(begin, end, TILE):
            count = min(end - start, TILE)
            find_cells(cells, table, row, start, end, n_cells, BLOCK, TILE, GROUP)
            barrier()
            score_tile(k, queries, cells, scores, kv_head, D, N_HEAD_KV, HEADS, TILE, LANES, GROUP, LOAD_K)
            barrier()
            top, total = weigh_tile(
                scores, maxima, corrections, top, total, count, f32(position) - f32(start), scale, softcap,
                my_slope, HEADS, TILE, SOFTCAP, ALIBI,
            )  # fmt: skip
            add_values(
                v, sums, scores, corrections, cells, kv_head, count, DV, N_HEAD_KV, HEADS, TILE, GROUP, LOAD_V
            )
            barrier()
        barrier()
        add_planes(sums, planes, DV, HEADS, GROUP)
        tops, weights = shared_array(f32, HEADS), shared_array(f32, HEADS)
        add_totals(tops, weights, maxima, top, total, HEADS)
        for h in unroll(HEADS):
            head = token * N_HEAD + kv_head * each + min(chunk * HEADS + h, each - 1)
            for part in unroll(parts):
                leave(
                    records, out, head, sums[h * parts + part], tops[h],
                    weights[h] + one_for_none(first, last), splits,
                    local_id(0) + part * GROUP, DV, RECORDS, SINKS,
                )  # fmt: skip

    return attention


ATTENTION: Mapping[tuple[ValueType, ValueType], Kernel] = {pair: _attention(*pair) for pair in PAIRS}
"""What keys and values are bound as arrays of -> kernel."""
