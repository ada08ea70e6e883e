"""The largest elements of rows and elements by number. Of equals the first comes first, a NaN last."""

from __future__ import annotations

import math

from graphml_gpu.kernels.grid import element_number, group_number
from graphml_gpu.language import (
    Array,
    Read,
    Update,
    Write,
    atomic_add,
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
    select,
    shared_array,
    u32,
    uniform,
)

NONE_CHOSEN = 0xFFFFFFFF
"""The key before that of the largest element: larger than that of every number."""
_LAST = 0xFFFFFFFF
RANKED = 2048
"""Pairs that are counted against each other; the turns of loops grow with their square."""


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
def next_largest(
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
    largest, least = u32(0), u32(_LAST)
    for i in range(local_id(0), n, GROUP):
        other = KEY(values[start + i * STRIDE])  # type: ignore[operator]
        behind = other < key or (other == key and i > place)
        if behind and (least == _LAST or other > largest):
            largest = other
            least = i
    highest = group_max(largest)
    # The first of those with that key: the largest complement. Who found none says 0.
    first = group_max(select(largest == highest and least != _LAST, _LAST - least, 0))
    return highest, _LAST - first


@function
def key_of_bits(bits: u32) -> u32:
    """`sortable` of an f32 by its bits."""
    return sortable(bitcast(f32, bits))


@kernel
def top_k(
    x: Read[u32], out: Update[i32], rows: u32, n: u32, k: u32, first: u32, last: u32, *, GROUP: int = 64
) -> None:
    """out[row, first:last] = those of the numbers of the k largest elements of x[row], the largest first.

    x: f32 [rows, n], by its bits; out [rows, k], which holds those before `first`.
    """
    row = group_number()
    if row < rows:
        key, place = u32(NONE_CHOSEN), u32(0)
        if first > 0:
            place = u32(out[row * k + first - 1])
            key = key_of_bits(x[row * n + place])
        for j in range(first, last):
            key, place = next_largest(x, row * n, n, key, place, GROUP, key_of_bits)
            if local_id(0) == 0:
                out[row * k + j] = i32(place)


@kernel
def column_maxima(x: Read[u32], maxima: Write[u32], n: u32, *, COLUMNS: int, GROUP: int = 64) -> None:
    """maxima[row, c] = key and number of the largest of x[row, c::COLUMNS], the first of equals.

    x: f32 [rows, n], by its bits, n at least COLUMNS; maxima [rows, COLUMNS, 2]. An invocation a column, a
    workgroup (columns, row): neighbours read neighbours.
    """
    column, row = group_id(0) * GROUP + local_id(0), group_id(1)
    if column < COLUMNS:
        key = key_of_bits(x[row * n + column])
        place = column
        for i in range(column + COLUMNS, n, COLUMNS):
            other = key_of_bits(x[row * n + i])
            if other > key:
                key = other
                place = i
        maxima[(row * COLUMNS + column) * 2] = key
        maxima[(row * COLUMNS + column) * 2 + 1] = place


@function
def next_pair(pairs: Array[u32], start: u32, n: u32, key: u32, place: u32, GROUP: int) -> tuple[u32, u32]:
    """The first of n pairs (key, place) behind one, by `n_before`'s order. All must call it."""
    largest, least = u32(0), u32(_LAST)
    for i in range(start + local_id(0), start + n, GROUP):
        other, other_place = pairs[i * 2], pairs[i * 2 + 1]
        behind = other < key or (other == key and other_place > place)
        if behind and (least == _LAST or other > largest or (other == largest and other_place < least)):
            largest = other
            least = other_place
    highest = group_max(largest)
    first = group_max(select(largest == highest and least != _LAST, _LAST - least, 0))
    return highest, _LAST - first


@function
def n_before(pairs: Array[u32], start: u32, n: u32, key: u32, place: u32) -> u32:
    """How many of n pairs (key, place) come before one: by a larger key, or of equals by place."""
    before = u32(0)
    for i in range(start, start + n):
        other, other_place = pairs[i * 2], pairs[i * 2 + 1]
        if other > key or (other == key and other_place < place):
            before += 1
    return before


@function
def _leave_in_turn(
    found: Array[u32], out: Write[i32], begin: u32, total: u32, start: u32, k: u32, GROUP: int
) -> None:
    """out[start + j] = the place of the j-th of `total` pairs, one after the other. All must call it."""
    key, place = u32(NONE_CHOSEN), u32(0)
    for j in range(k):
        key, place = next_pair(found, begin, total, key, place, GROUP)
        if local_id(0) == 0:
            out[start + j] = i32(place)


@function
def _leave_ranked(
    found: Array[u32], out: Write[i32], begin: u32, total: u32, start: u32, k: u32, GROUP: int
) -> None:
    """The same, each pair counted against all."""
    for first in range(0, total, GROUP):
        # Who has none of its own takes the last too: PoCL 3.1 lets some of those that are left out store.
        mine = begin + min(first + local_id(0), total - 1)
        number = found[mine * 2 + 1]
        before = n_before(found, begin, total, found[mine * 2], number)
        if before < k:
            out[start + before] = i32(number)


@kernel
def top_k_of_columns(
    x: Read[u32],
    maxima: Read[u32],
    found: Update[u32],
    out: Write[i32],
    rows: u32,
    n: u32,
    k: u32,
    *,
    COLUMNS: int,
    MOST: int,
    GROUP: int = 256,
) -> None:
    """out[row] = numbers of the k largest elements of x[row], the largest first; k up to MOST and COLUMNS.

    maxima: of `column_maxima`. The k largest are in the k columns whose maxima are largest, and none of them
    comes behind the last of those: there are few more of these than k, which then are counted against
    each other. Of more than `RANKED`, one after the other is found. found [rows, k * ceil(n / COLUMNS), 2]:
    room for them. A workgroup a row.
    """
    row = group_number()
    if row < rows:
        me = local_id(0)
        pairs = shared_array(u32, 2 * COLUMNS)
        chosen, last = shared_array(u32, MOST), shared_array(u32, 2)
        count = shared_array(u32, 1)
        for i in range(me, 2 * COLUMNS, GROUP):
            pairs[i] = maxima[row * (2 * COLUMNS) + i]
        if me == 0:
            count[0] = 0
        barrier()
        for c in range(me, COLUMNS, GROUP):
            rank = n_before(pairs, 0, COLUMNS, pairs[c * 2], pairs[c * 2 + 1])
            if rank < k:
                chosen[rank] = c
            if rank == k - 1:
                last[0] = pairs[c * 2]
                last[1] = pairs[c * 2 + 1]
        barrier()
        depth = (n + COLUMNS - 1) // COLUMNS
        begin = row * k * depth
        for i in range(me, k * depth, GROUP):
            place = chosen[i % k] + i // k * COLUMNS
            if place < n:
                key = key_of_bits(x[row * n + place])
                if key > last[0] or (key == last[0] and place <= last[1]):
                    at = begin + atomic_add(count, 0, 1)
                    found[at * 2] = key
                    found[at * 2 + 1] = place
        barrier()
        total = uniform(count[0])
        if total > RANKED:
            _leave_in_turn(found, out, begin, total, row * k, k, GROUP)
        else:
            _leave_ranked(found, out, begin, total, row * k, k, GROUP)


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
def top_k_groups(
    x: Read[f32], out: Write[f32], rows: u32, used: u32, *, N_GROUP: int, SIZE: int, GROUP: int = 64
) -> None:
    """out = x where its group is one of the top `used` of its row, else -inf. x, out [rows, N_GROUP * SIZE].

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
    """out[row, j] = x[row, ids[row, j]], 0 for an id outside.

    x [rows, width] of four bytes each; ids, out [rows, k], n in all.
    """
    i = element_number()
    if i < n:
        value = u32(0)
        if u32(ids[i]) < width:
            value = x[i // k * width + u32(ids[i])]
        out[i] = value


@kernel
def column_numbers(out: Write[i32], n: u32, width: u32, each: u32, *, GROUP: int = 64) -> None:
    """out[row] = 0, 1, ... width - 1, divided by `each` and rounded down; n elements of out."""
    i = element_number()
    if i < n:
        out[i] = i32(i % width // each)
