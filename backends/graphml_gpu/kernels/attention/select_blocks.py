"""The blocks of positions with the highest scores by an index of small keys: scores, then the top k in order.

Knows scores as keys of whole numbers that order them (`top_k.sortable`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from graphml_gpu.kernels.attention.cache_loads import ELEMENTS, CacheLoad, load_f32
from graphml_gpu.kernels.attention.parts import cell_of, list_number, load_query, seen
from graphml_gpu.kernels.indexing.top_k import n_before, sortable
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    Update,
    ValueType,
    Write,
    atomic_add,
    barrier,
    dot,
    f32,
    function,
    group_id,
    i32,
    isnan,
    kernel,
    local_id,
    select,
    shared_array,
    u32,
    uniform,
)

_DIGITS = 256
"""Values of a byte of a key."""


@function
def _product(q: Read[f32], k: Any, row: u32, cell: u32, D: int, LOAD: CacheLoad) -> f32:
    """A query times the key of a cell."""
    total = f32(0.0)
    for four in range((D + 3) // 4):
        total += dot(load_query(q, row, four, D), LOAD(k, cell, four, D))
    return total


def _score_blocks(element: Any) -> Kernel:
    """The kernel for a cache bound as an array of a type."""

    @kernel
    def score_blocks(
        q: Read[f32], k: Read[element], positions: Read[i32], sequences: Read[i32], block_table: Read[i32],
        weights: Read[f32], keys: Write[u32], table_stride: u32, n_sequences: u32, room: u32, n_cells: u32,
        most: u32, begin: u32,
        *, D: int, N_HEAD: int, BLOCK: int, SIZE: int, LOCAL: int = 0, WEIGHTED: bool = False,
        LOAD: CacheLoad = load_f32, GROUP: int = 64,
    ) -> None:  # fmt: skip
        """keys[i, list, block] = the highest score of the block's positions that token begin + i sees, a key.

        q [T, N_HEAD, D]; k [cell, 1, D]; weights [T, N_HEAD]; keys [tokens here, lists, most]. WEIGHTED:
        all heads make one list, the sum of weights times products above 0; else each has its own. The last
        LOCAL blocks have the highest of all. An invocation a block, a workgroup (blocks, token, list).
        """
        assert element is not None  # so that the annotations know it
        number, token = group_id(0) * GROUP + local_id(0), begin + group_id(1)
        row = list_number(sequences, token, n_sequences) * table_stride
        _, end = seen(sequences, sequences, token, positions[token], 0, n_sequences, room, False, False, True)
        n_visible = (end + SIZE - 1) // SIZE
        if number < n_visible:
            highest = f32(-math.inf)
            for at in range(number * SIZE, min(number * SIZE + SIZE, end)):
                cell = cell_of(block_table, row, at, n_cells, BLOCK)
                score = f32(0.0)
                if WEIGHTED:
                    for head in range(N_HEAD):
                        product = _product(q, k, token * N_HEAD + head, cell, D, LOAD)
                        score += weights[token * N_HEAD + head] * select(product < 0.0, 0.0, product)
                else:
                    score = _product(q, k, token * N_HEAD + group_id(2), cell, D, LOAD)
                highest = select(isnan(highest) or highest >= score, highest, score)
            if number + LOCAL >= n_visible:
                highest = math.inf
            lists = 1 if WEIGHTED else N_HEAD
            keys[(group_id(1) * lists + group_id(2)) * most + number] = sortable(highest)

    return score_blocks


SCORE_BLOCKS: Mapping[ValueType, Kernel] = {element: _score_blocks(element) for element in ELEMENTS}
"""Element type of the cache -> kernel."""


@function
def _find_digit(counts: Array[u32], found: Array[u32], wanted: u32) -> None:
    """Of keys counted by a digit: that of the wanted-th largest, and how many are wanted of those with it."""
    digit, left = u32(_DIGITS - 1), wanted
    while digit > 0 and counts[digit] < left:
        left -= counts[digit]
        digit -= 1
    found[0] = digit
    found[1] = left


@function
def _key(key: u32, place: u32, equal: u32) -> u32:
    """A key as it is."""
    return key


@function
def _place_of_equal(key: u32, place: u32, equal: u32) -> u32:
    """Larger for an earlier place; 0 for other keys than `equal`."""
    return select(key == equal, ~place, 0)


@function
def _nth_largest(
    keys: Read[u32], start: u32, n_visible: u32, n: u32, equal: u32, bytes_of_key: u32, GROUP: int,
    VALUE: Any,
) -> tuple[u32, u32, u32]:  # fmt: skip
    """The n-th largest VALUE of n_visible keys, byte by byte. All must call it.

    Beside it how many of those with this value are among the n largest, and how many there are.
    """
    me = local_id(0)
    counts, digits = shared_array(u32, _DIGITS), shared_array(u32, 2)
    least, wanted, alike = u32(0), n, u32(0)
    for step in range(bytes_of_key):
        shift = 24 - 8 * step
        for i in range(me, _DIGITS, GROUP):
            counts[i] = 0
        barrier()
        for first in range(0, n_visible, GROUP):
            if first + me < n_visible:
                key = VALUE(keys[start + first + me], first + me, equal)
                if ((key ^ least) >> shift) < _DIGITS:  # all bytes before are those that are known
                    atomic_add(counts, (key >> shift) & 255, 1)
        barrier()
        if me == 0:
            _find_digit(counts, digits, wanted)
        barrier()
        least = least | (digits[0] << shift)
        wanted = digits[1]
        alike = counts[digits[0]]
        barrier()
    return least, wanted, alike


@function
def _collect(
    keys: Read[u32], found: Array[u32], start: u32, n_visible: u32, least: u32, latest: u32, GROUP: int
) -> u32:
    """Put the keys that are not smaller to `found`, each with its number, in any order; gives how many.

    latest: of those that are equal, the last place that counts, as `_place_of_equal` has it.
    """
    me = local_id(0)
    count = shared_array(u32, 1)
    if me == 0:
        count[0] = 0
    barrier()
    for first in range(0, n_visible, GROUP):
        if first + me < n_visible:
            key = keys[start + first + me]
            if key > least or (key == least and ~(first + me) >= latest):
                at = start + atomic_add(count, 0, 1)
                found[at * 2] = key
                found[at * 2 + 1] = first + me
    barrier()
    return count[0]


@kernel
def top_k_blocks(
    keys: Read[u32], positions: Read[i32], sequences: Read[i32], found: Update[u32], out: Write[i32], n: u32,
    most: u32, bytes_of_key: u32, begin: u32, n_sequences: u32, room: u32,
    *, LISTS: int, SIZE: int, GROUP: int = 256,
) -> None:  # fmt: skip
    """out[begin + row] = numbers of a row's n largest keys, the largest first, the first of equals; then -1.

    keys [rows of a chunk, most], LISTS rows for each token; of a row as many count as its token sees blocks.
    The n largest are ranked. found [rows of a chunk, most, 2]: room for it.
    bytes_of_key is 4: a scalar, since compilers write out loops of barriers whose length they know. A
    workgroup a row.
    """
    row, start = begin + group_id(0), group_id(0) * most
    me = local_id(0)
    token = row // LISTS
    _, end = seen(sequences, sequences, token, positions[token], 0, n_sequences, room, False, False, True)
    n_visible = (end + SIZE - 1) // SIZE
    wanted = min(n, n_visible)
    least, left, alike = _nth_largest(keys, start, n_visible, wanted, 0, bytes_of_key, GROUP, _key)
    latest = u32(0)
    if uniform(select(alike > left, u32(1), u32(0))) == 1:  # too many of the last: the first of them
        latest, _, _ = _nth_largest(keys, start, n_visible, left, least, bytes_of_key, GROUP, _place_of_equal)
    total = _collect(keys, found, start, n_visible, least, latest, GROUP)
    for first in range(0, total, GROUP):
        # Who has none of its own takes the last too: PoCL 3.1 lets some of those that are left out store.
        mine = start + min(first + me, total - 1)
        number = found[mine * 2 + 1]
        before = n_before(found, start, total, found[mine * 2], number)
        if before < n:
            out[row * n + before] = i32(number)
    for first in range(0, n, GROUP):
        place = min(first + me, n - 1)
        if place >= total:
            out[row * n + place] = -1
