"""Sampling a token, from the whole row or from its top k, and the logarithm of the row's sum."""

from __future__ import annotations

from graphml_gpu.kernels.grid import element_number, group_number
from graphml_gpu.language import (
    Array,
    Read,
    Write,
    atomic_min,
    barrier,
    clamp,
    exp,
    f32,
    function,
    group_id,
    group_sum,
    i32,
    kernel,
    local_id,
    log,
    num_groups,
    shared_array,
    u32,
)

_FINITE = 3e38
"""Below the largest number there is: what is subtracted from infinities, so that they stay what they are."""


@function
def _weight(x: f32, top: f32, lowest: f32, inverse_temperature: f32) -> f32:
    """How likely an element is sampled from its whole row."""
    return exp(min((x - top) * inverse_temperature, 0.0)) if x >= top + lowest else f32(0.0)


@kernel
def row_sums(
    row: Read[f32], top_logits: Read[f32], settings: Read[f32], sums: Write[f32], n: u32, k: u32,
    *, SIZE: int, GROUP: int = 256,
) -> None:  # fmt: skip
    """Of each block of SIZE elements of row[r]: the sum of exp(x - top), and that of what it is sampled by.

    row [rows, n]; top_logits [rows, k], the largest first; settings [rows, 5]; sums [rows, blocks, 2]. A
    token sampled from the top k has no second sum. A workgroup (block, r).
    """
    first, r = group_id(0) * SIZE, group_id(1)
    end = min(first + SIZE, n)
    top = clamp(top_logits[r * k], -_FINITE, _FINITE)
    inverse_temperature, lowest = settings[r * 5], settings[r * 5 + 3]
    top_k, top_p = settings[r * 5 + 1], settings[r * 5 + 2]
    total, weights = f32(0.0), f32(0.0)
    for i in range(first + local_id(0), end, GROUP):
        x = row[r * n + i]
        total += exp(x - top)
        if top_k <= 0.0 and top_p >= 1.0:
            weights += _weight(x, top, lowest, inverse_temperature)
    whole = group_sum(total)
    sampled = group_sum(weights)
    if local_id(0) == 0:
        at = (r * num_groups(0) + group_id(0)) * 2
        sums[at] = whole
        sums[at + 1] = sampled


@function
def _add_up(sums: Array[f32], width: u32) -> None:
    """sums[i] = sums[0] + ... + sums[i], in pairs, so that little is rounded. All must call it."""
    me = local_id(0)
    step = u32(1)
    while step < width:
        barrier()
        before = f32(0.0)
        if me >= step:
            before = sums[me - step]
        barrier()
        sums[me] += before
        step = step * 2
    barrier()


@function
def _first_above(sums: Array[f32], found: Array[u32], target: f32, last: u32) -> u32:
    """The first number whose sum is above the target, or the last. All must call it."""
    me = local_id(0)
    if me == 0:
        found[0] = last
    barrier()
    if me < last and sums[me] > target:
        atomic_min(found, 0, me)
    barrier()
    return found[0]


@function
def _of_row(
    row: Read[f32], settings: Read[f32], r: u32, n: u32, weights: f32, top: f32, blocks: u32, width: u32,
    SIZE: int, GROUP: int,
) -> tuple[u32, f32, f32]:  # fmt: skip
    """The place in row[r] that is sampled, and the shares before it and with it: for the first invocation.

    weights: what a block of row[r] is sampled by, of each invocation another. All must call it. The block is
    first looked for in which the number lies, then the run of elements of an invocation, then the element.
    """
    me = local_id(0)
    inverse_temperature, lowest = settings[r * 5], settings[r * 5 + 3]
    running, found = shared_array(f32, GROUP), shared_array(u32, 1)
    running[me] = weights
    _add_up(running, width)
    total = running[GROUP - 1]
    target = settings[r * 5 + 4] * total
    block = _first_above(running, found, target, blocks - 1)
    before = f32(0.0)
    if block > 0:
        before = running[block - 1]
    barrier()
    each = SIZE // GROUP
    first, end = block * SIZE, min((block + 1) * SIZE, n)
    mine = f32(0.0)
    for j in range(each):
        i = first + me * each + j
        if i < end:
            mine += _weight(row[r * n + i], top, lowest, inverse_temperature)
    running[me] = mine
    _add_up(running, width)
    chosen = _first_above(running, found, target - before, GROUP - 1)
    low, upto, place = before, before, u32(0)
    if me == 0:  # not the one whose run it is: with PoCL 3.1 that one did not store at times
        if chosen > 0:
            upto += running[chosen - 1]
        for j in range(each):
            i = first + chosen * each + j
            if i < end and upto <= target:
                weight = _weight(row[r * n + i], top, lowest, inverse_temperature)
                if weight > 0.0:
                    low = upto
                    upto += weight
                    place = i
    none = total <= 0.0
    return place, 0.0 if none else low / total, 0.0 if none else upto / total


@kernel
def sample_row(
    row: Read[f32], top_logits: Read[f32], settings: Read[f32], sums: Read[f32], out: Write[f32],
    rows: u32, n: u32, k: u32, blocks: u32, width: u32, *, SIZE: int, GROUP: int = 256,
) -> None:  # fmt: skip
    """out[r] = what op `sample_row` tells of row[r].

    row [rows, n]; top_logits [rows, k], the largest first; settings [rows, 5]; sums by `row_sums`, of at most
    GROUP blocks; out [rows, 4]. width is GROUP: a scalar, since compilers write out loops of barriers whose
    length they know. A workgroup a row.
    """
    r = group_number()
    if r < rows:
        me = local_id(0)
        top = clamp(top_logits[r * k], -_FINITE, _FINITE)
        whole, weights = f32(0.0), f32(0.0)
        if me < blocks:
            whole = sums[(r * blocks + me) * 2]
            weights = sums[(r * blocks + me) * 2 + 1]
        total = group_sum(whole)
        place, before, upto = u32(0), f32(0.0), f32(0.0)
        if settings[r * 5 + 1] <= 0.0 and settings[r * 5 + 2] >= 1.0:
            place, before, upto = _of_row(row, settings, r, n, weights, top, blocks, width, SIZE, GROUP)
        if me == 0:
            out[r * 4] = log(total) + top
            out[r * 4 + 1] = f32(place)
            out[r * 4 + 2] = before
            out[r * 4 + 3] = upto


@function
def _among_top_k(logits: Read[f32], settings: Read[f32], r: u32, k: u32, log_sum: f32) -> u32:
    """The sampled one of the top k; for one invocation."""
    at = r * k
    inverse_temperature, most = settings[r * 5], u32(settings[r * 5 + 1])
    top_p, lowest, number = settings[r * 5 + 2], settings[r * 5 + 3], settings[r * 5 + 4]
    top = logits[at]
    among = k
    whole = exp(log_sum - top)
    if most > 0:
        among = min(most, k)
        whole = 0.0
        for i in range(among):
            whole += exp(logits[at + i] - top)
    kept = u32(0)
    running, total = f32(0.0), f32(0.0)
    for i in range(among):
        below = logits[at + i] - top
        likely = (top_p >= 1.0 or running < top_p * whole) and logits[at + i] >= top + lowest
        if i == 0 or likely:
            running += exp(below)
            total += exp(below * inverse_temperature)
            kept = i + 1
    chosen = u32(0)
    running = 0.0
    for i in range(kept):
        running += exp((logits[at + i] - top) * inverse_temperature)
        if running <= number * total:
            chosen = i + 1
    return min(chosen, kept - 1)


@kernel
def sample_token(
    ids: Read[i32], top_logits: Read[f32], of_row: Read[f32], settings: Read[f32], out: Write[i32],
    rows: u32, k: u32, *, GROUP: int = 32,
) -> None:  # fmt: skip
    """out[r] = the id that is sampled, as op `sample_token` means it; an invocation a row.

    ids, top_logits [rows, k], the largest first; of_row [rows, 4] by `sample_row`; settings [rows, 5].
    """
    r = element_number()
    if r < rows:
        if settings[r * 5 + 1] <= 0.0 and settings[r * 5 + 2] >= 1.0:
            out[r] = i32(of_row[r * 4 + 1])
        else:
            out[r] = ids[r * k + _among_top_k(top_logits, settings, r, k, of_row[r * 4])]
