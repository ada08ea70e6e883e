"""The largest elements of rows and elements by number. Of equals the first comes first, a NaN last."""

from __future__ import annotations

import math

from graphml_gpu.kernels.grid import element_number, group_number
from graphml_gpu.language import (
    Read,
    Write,
    barrier,
    bitcast,
    f32,
    function,
    group_id,
    group_max,
    i32,
    isnan,
    kernel,
    local_id,
    num_groups,
    select,
    shared_array,
    u32,
)

NONE_CHOSEN = 0xFFFFFFFF
"""The key before that of the largest element: larger than that of every number."""
_LAST = 0xFFFFFFFF


@function
def sortable(x: f32) -> u32:
    """A number that is larger where x is; the same for both zeros; 0 for a NaN."""
    bits = bitcast(u32, x)
    plain = select(bits == 0x80000000, 0, bits)
    key = select(plain >= 0x80000000, ~plain, plain | 0x80000000)
    return select((bits & 0x7FFFFFFF) > 0x7F800000, 0, key)


@function
def same(key: u32) -> u32:
    """Keys as they are."""
    return key


@function
def best_after(
    values: Read[u32],
    start: u32,
    n: u32,
    key: u32,
    place: u32,
    GROUP: int,
    KEY: object = same,
    STRIDE: int = 1,
) -> tuple[u32, u32]:
    """The key and place of the first of n elements behind the one with this key and place. All must call it.

    values[start + i * STRIDE] is made a key by KEY. Where none stands behind: 0 and 2^32 - 1.
    """
    best, least = u32(0), u32(_LAST)
    for i in range(local_id(0), n, GROUP):
        other = KEY(values[start + i * STRIDE])  # type: ignore[operator]
        behind = other < key or (other == key and i > place)
        if behind and (least == _LAST or other > best):
            best = other
            least = i
    highest = group_max(best)
    # The first of those with that key: the largest complement. Who found none says 0.
    first = group_max(select(best == highest and least != _LAST, _LAST - least, 0))
    return highest, _LAST - first


@function
def key_of_bits(bits: u32) -> u32:
    """`sortable` of an f32 by its bits."""
    return sortable(bitcast(f32, bits))


@kernel
def top_k(x: Read[u32], out: Write[i32], rows: u32, n: u32, k: u32, *, GROUP: int = 64) -> None:
    """out[row] = numbers of the k largest elements of x[row], the largest first.

    x: f32 [rows, n], by its bits; out [rows, k].
    """
    row = group_number()
    if row < rows:
        key, place = u32(NONE_CHOSEN), u32(0)
        for j in range(k):
            key, place = best_after(x, row * n, n, key, place, GROUP, key_of_bits)
            if local_id(0) == 0:
                out[row * k + j] = i32(place)


@kernel
def top_k_of_blocks(
    x: Read[u32], chosen: Write[u32], n: u32, k: u32, *, SIZE: int = 4096, GROUP: int = 256
) -> None:
    """The k largest of each block of SIZE elements of x[row], as `top_k`: key and number.

    x: f32 [rows, n], by its bits; chosen [rows, blocks, k, 2]. What a block has too little of has key 0. A
    workgroup (block, row).
    """
    first, row = group_id(0) * SIZE, group_id(1)
    count = min(n - first, SIZE)
    at = (row * num_groups(0) + group_id(0)) * k
    key, place = u32(NONE_CHOSEN), u32(0)
    for j in range(k):
        key, place = best_after(x, row * n + first, count, key, place, GROUP, key_of_bits)
        if local_id(0) == 0:
            chosen[(at + j) * 2] = key
            chosen[(at + j) * 2 + 1] = first + place


@kernel
def top_k_of_chosen(
    chosen: Read[u32], out: Write[i32], rows: u32, n: u32, k: u32, *, GROUP: int = 256
) -> None:
    """out[row] = numbers of the k largest of n that `top_k_of_blocks` chose, of all its blocks in order."""
    row = group_number()
    if row < rows:
        key, place = u32(NONE_CHOSEN), u32(0)
        for j in range(k):
            key, place = best_after(chosen, row * n * 2, n, key, place, GROUP, STRIDE=2)
            if local_id(0) == 0:
                out[row * k + j] = i32(chosen[(row * n + place) * 2 + 1])


@function
def _two_largest(x: Read[f32], start: u32, n: u32) -> f32:
    """The sum of the two largest of n elements, at least two; NaN where there is one."""
    first, second = f32(-math.inf), f32(-math.inf)
    flaw = f32(0.0)
    for i in range(n):
        value = x[start + i]
        if value > first:
            second = first
            first = value
        elif value > second:
            second = value
        if isnan(value):
            flaw = value
    return first + second + flaw


@kernel
def best_groups(
    x: Read[f32], out: Write[f32], rows: u32, used: u32, *, N_GROUP: int, SIZE: int, GROUP: int = 64
) -> None:
    """out = x where its group is one of the `used` best of its row, else -inf. x, out [rows, N_GROUP * SIZE].

    A group is worth its two largest elements, NaN being the largest.
    """
    row = group_number()
    if row < rows:
        start = row * (N_GROUP * SIZE)
        worth = shared_array(u32, N_GROUP)
        for g in range(local_id(0), N_GROUP, GROUP):
            worth[g] = sortable(_two_largest(x, start + g * SIZE, SIZE))
        barrier()
        for i in range(local_id(0), N_GROUP * SIZE, GROUP):
            mine = i // SIZE
            before = u32(0)
            for g in range(N_GROUP):
                if worth[g] > worth[mine] or (worth[g] == worth[mine] and g < mine):
                    before += 1
            out[start + i] = select(before < used, x[start + i], bitcast(f32, u32(0xFF800000)))


@kernel
def gather(
    x: Read[u32], ids: Read[i32], out: Write[u32], n: u32, k: u32, width: u32, *, GROUP: int = 64
) -> None:
    """out[row, j] = x[row, ids[row, j]]. x [rows, width] of four bytes each; ids, out [rows, k], n in all."""
    i = element_number()
    if i < n:
        column = min(max(ids[i], 0), i32(width) - 1)
        out[i] = x[i // k * width + u32(column)]


@kernel
def column_numbers(out: Write[i32], n: u32, width: u32, each: u32, *, GROUP: int = 64) -> None:
    """out[row] = 0, 1, ... width - 1, divided by `each` and rounded down; n elements of out."""
    i = element_number()
    if i < n:
        out[i] = i32(i % width // each)
