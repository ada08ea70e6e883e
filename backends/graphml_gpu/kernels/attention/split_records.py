"""Records of a context that is split over workgroups (Flash-Decoding): each leaves one, which are merged.

A record has the largest score of its positions, the sum of their weights, and values not divided by it yet.
"""

from __future__ import annotations

import math

from graphml_gpu.kernels.attention.parts import one_for_none, seen, split_size, store_four, weight_of
from graphml_gpu.language import (
    Read,
    Vector,
    Write,
    barrier,
    exp,
    f32,
    function,
    group_id,
    group_max,
    group_sum,
    i32,
    kernel,
    local_id,
    select,
    shared_array,
    u32,
    unroll,
)

RECORD_HEAD = 2
"""Numbers of a record before its values: the largest score and the sum of weights."""
MOST_SPLITS = 64
"""Records of a head that `combine_attention` merges; it has an invocation for each."""
AT_ONCE = 4
"""Records that it reads before it adds any."""


@function
def leave(
    records: Write[f32], out: Write[f32], head: u32, values: Vector[float], top: f32, weight: f32,
    splits: u32, four: u32, DV: int, RECORDS: bool, SINKS: bool,
) -> None:  # fmt: skip
    """Write a four of a head's values divided by the sum of weights, or undivided to a record with both."""
    if four < (DV + 3) // 4:
        if RECORDS and (SINKS or splits > 1):
            record = (head * splits + group_id(2)) * (DV + RECORD_HEAD)
            if four == 0:
                records[record] = top
                records[record + 1] = weight
            store_four(records, record + RECORD_HEAD, four, values, DV)
        else:
            store_four(out, head * DV, four, values / weight, DV)


@function
def divided(
    value: Vector[float], weight: f32, top: f32, sinks: Read[f32], head: u32, SINKS: bool
) -> Vector[float]:
    """Values divided by the sum of weights, with the head's sink among them."""
    if SINKS:
        highest = max(top, sinks[head])
        kept = weight_of(top, highest)
        return value * kept / (weight * kept + exp(sinks[head] - highest))
    return value / weight


@kernel
def combine_attention(
    records: Read[f32], positions: Read[i32], sequences: Read[i32], lengths: Read[i32], sinks: Read[f32],
    out: Write[f32], window: u32, n_sequences: u32, room: u32, splits: u32,
    *, DV: int, N_HEAD: int, LEAST: int = 64, WINDOW: bool = False, CHUNK: bool = False, SINKS: bool = False,
    CAUSAL: bool = True, GROUP: int = 256,
) -> None:  # fmt: skip
    """out[t, head] = the records of its splits as one. A workgroup (head, token); see `attention`."""
    head, token = group_id(0), group_id(1)
    low, high = seen(
        sequences, lengths, token, positions[token], window, n_sequences, room, WINDOW, CHUNK, CAUSAL
    )
    share = split_size(high - low, splits, LEAST)
    count = (high - low + share - 1) // share
    first = (token * N_HEAD + head) * splits * (DV + RECORD_HEAD)
    mine, weight = f32(-math.inf), f32(0.0)
    if local_id(0) < count:
        mine = records[first + local_id(0) * (DV + RECORD_HEAD)]
        weight = records[first + local_id(0) * (DV + RECORD_HEAD) + 1]
    top = group_max(mine)
    if SINKS:
        top = max(top, sinks[head])
    kept = shared_array(f32, GROUP)
    kept[local_id(0)] = weight_of(mine, top)
    total = group_sum(weight * weight_of(mine, top)) + one_for_none(low, high)
    if SINKS:
        total += exp(sinks[head] - top)
    barrier()
    columns = min(DV, GROUP)
    planes = max(GROUP // columns, 1)
    column, plane = local_id(0) % columns, local_id(0) // columns
    parts = shared_array(f32, planes * columns)
    for begin in range(0, DV, GROUP):
        value = f32(0.0)
        if begin + column < DV and plane < planes:
            for s in range(plane, count, planes * AT_ONCE):
                for i in unroll(AT_ONCE):
                    other = min(s + i * planes, count - 1)
                    at = first + other * (DV + RECORD_HEAD) + RECORD_HEAD + begin + column
                    value += select(s + i * planes < count, records[at] * kept[other], 0.0)
        if planes > 1:
            if plane < planes:
                parts[plane * columns + column] = value
            barrier()
            for other in range(1, planes):
                value += parts[min(other, planes - 1) * columns + column]
        if begin + column < DV and plane == 0:
            out[(token * N_HEAD + head) * DV + begin + column] = value / total
