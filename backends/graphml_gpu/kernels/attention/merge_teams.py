"""The merge of teams that attended to positions of their own: by shuffles, then in shared memory.

Knows the sums of teams and where a workgroup leaves its result; nothing of keys, values and positions.
"""

from __future__ import annotations

from graphml_gpu.kernels.attention.fetched_rows import fetches, fours_at_once, fours_of
from graphml_gpu.kernels.attention.parts import weight_of
from graphml_gpu.kernels.attention.split_records import leave
from graphml_gpu.language import (
    Array,
    Write,
    barrier,
    f32,
    f32x4,
    function,
    local_id,
    shared_array,
    subgroup_size_min,
    subgroup_xor,
    u32,
    unroll,
)

MERGE_BYTES = 8192
"""Shared memory that the values of a workgroup may take, those of one head at least."""


def doublings(first: int, end: int) -> tuple[int, ...]:
    """first, 2 * first, ... below end."""
    strides = []
    while first < end:
        strides.append(first)
        first *= 2
    return tuple(strides)


def merged_at_once(heads: int, planes: int, width: int) -> int:
    """Heads whose values are merged between two barriers."""
    return max(1, min(heads, MERGE_BYTES // (planes * fours_of(width) * 16)))


@function
def merge_lanes(
    tops: Array[f32], totals: Array[f32], sums: Array[f32x4], HEADS: int, HELD: int, LANES: int, CLUSTER: int
) -> None:
    """Merge the teams of CLUSTER neighbours: the lanes of each then hold what all of them have."""
    for h in unroll(HEADS):
        highest = tops[h]
        for step in unroll(doublings(LANES, CLUSTER)):
            highest = max(highest, subgroup_xor(highest, step))
        kept = weight_of(tops[h], highest)
        total = totals[h] * kept
        for step in unroll(doublings(LANES, CLUSTER)):
            total += subgroup_xor(total, step)
        tops[h] = highest
        totals[h] = total
        for i in unroll(HELD):
            four = sums[h * HELD + i] * kept
            for step in unroll(doublings(LANES, CLUSTER)):
                four += f32x4(
                    subgroup_xor(four.x, step), subgroup_xor(four.y, step),
                    subgroup_xor(four.z, step), subgroup_xor(four.w, step),
                )  # fmt: skip
            sums[h * HELD + i] = four


@function
def gather_planes(
    gathered: Array[f32x4], sums: Array[f32x4], begin: int,
    DV: int, HEADS: int, LANES: int, CLUSTER: int, PLANES: int,
) -> None:  # fmt: skip
    """Bring the values of heads `begin` and on of each plane of CLUSTER neighbours to shared memory."""
    each, lane, fours = fetches(DV, LANES), local_id(0) % CLUSTER, fours_of(DV)
    batch = merged_at_once(HEADS, PLANES, DV)
    if lane < LANES:
        for h in unroll(begin, min(begin + batch, HEADS)):
            for part in unroll(each):
                four = (lane + part * LANES) * fours_at_once(DV)
                if four < fours:
                    start = ((h - begin) * PLANES + local_id(0) // CLUSTER) * fours + four
                    for i in unroll(fours_at_once(DV)):
                        gathered[start + i] = sums[(h * each + part) * fours_at_once(DV) + i]


@function
def merge_teams(
    records: Write[f32], out: Write[f32], tops: Array[f32], totals: Array[f32], sums: Array[f32x4],
    first_row: u32, first_head: u32, last_head: u32, more: f32, splits: u32,
    DV: int, HEADS: int, LANES: int, GROUP: int, RECORDS: bool, SINKS: bool,
) -> None:  # fmt: skip
    """Merge all teams and `leave` their heads, `first_head` and on of those from row `first_row`.

    more: added to the sums of weights, see `one_for_none`.
    """
    cluster = min(subgroup_size_min(), GROUP)
    planes, fours = GROUP // cluster, fours_of(DV)
    plane = local_id(0) // cluster
    merge_lanes(tops, totals, sums, HEADS, fetches(DV, LANES) * fours_at_once(DV), LANES, cluster)
    batch = merged_at_once(HEADS, planes, DV)
    gathered = shared_array(f32x4, batch * planes * fours)
    maxima, shares = shared_array(f32, HEADS * planes), shared_array(f32, HEADS * planes)
    if local_id(0) % cluster == 0:
        for h in unroll(HEADS):
            maxima[h * planes + plane] = tops[h]
            shares[h * planes + plane] = totals[h]
    for begin in unroll(range(0, HEADS, batch)):
        gather_planes(gathered, sums, begin, DV, HEADS, LANES, cluster, planes)
        barrier()
        for i in range(local_id(0), min(batch, HEADS - begin) * fours, GROUP):
            h = i // fours + begin
            highest = maxima[h * planes]
            for other in range(1, planes):
                highest = max(highest, maxima[h * planes + other])
            value, weight = f32x4(0.0), f32(0.0)
            for other in range(planes):
                kept = weight_of(maxima[h * planes + other], highest)
                weight += shares[h * planes + other] * kept
                value += gathered[((h - begin) * planes + other) * fours + i % fours] * kept
            head = first_row + min(first_head + h, last_head)
            leave(records, out, head, value, highest, weight + more, splits, i % fours, DV, RECORDS, SINKS)
        barrier()
