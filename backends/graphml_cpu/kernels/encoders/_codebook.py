"""The codebook's vector for eight numbers, or four: that of the least weighted error among ggml's neighbours.

Rounded numbers that are no vector of the codebook have a list of neighbours, the nearest of it. The lists are
made here of the decoder's codebook and are part of the kernel's code. A list is searched a block after the
other, a neighbour in each lane.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32_BYTES, I32, LANES
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    F32 as NEIGHBOURS,
)
from graphml_cpu.simd import (
    I32 as NEIGHBOUR_NUMBERS,
)
from graphml_cpu.simd import (
    WIDTH,
    constant_lanes,
    constant_table,
    f32,
    load,
    load_f32,
    load_i32,
    min_lanes,
    select,
    splat,
    store,
    store_i32,
    to_float,
)

# A list is a word, its start and its length, which is 0 for a vector of the codebook itself.
_START_SHIFT, _LENGTH = 9, 511
# An entry is a word: the index of a vector, and its levels.
_INDEX_SHIFT, _INDEX, IS_NEIGHBOUR = 17, 0x1FFF, 1 << 30
_NONE = 1 << 20
_lane_numbers = constant_lanes(NEIGHBOUR_NUMBERS, range(WIDTH))


class Codebook(NamedTuple):
    """Vectors of `length` levels from 0 to `levels` - 1; a level l means 2 l + 1, or l - 1 + `shift`.

    nearest(keys, x, weights, scale, shift, to): keys, I32, are the levels of the rounded numbers, as digits,
    the first the lowest; scale and shift are the addresses of vectors; to becomes the entries.
    number(entry, i, shift) -> what the level i of an entry means, F32.
    """

    length: int
    levels: int
    nearest: Any
    number: Any


@inline
def index_of(entry: Vector) -> Vector:
    """The index of a vector in the codebook, of its entry."""
    return (entry >> _INDEX_SHIFT) & _INDEX


@inline
def is_neighbour(entry: Vector) -> Vector:
    """Which lanes are not what their numbers were rounded to."""
    return entry >= splat(I32, IS_NEIGHBOUR)


def _tables(numbers: NDArray[np.int64], levels: int, bits: int, shells: int) -> tuple[bytes, bytes]:
    """The lists of all keys, and the entries that they are of.

    A list has the vectors of the `shells` smallest distances, from the nearest on, equals by their index.
    """
    length = numbers.shape[1]
    digits = np.arange(levels**length)[:, None] // levels ** np.arange(length) % levels
    squares = (digits**2).sum(1)[:, None] + (numbers**2).sum(1) - 2 * digits @ numbers.T
    limit, farther = squares.min(1), squares
    for _ in range(shells - 1):
        farther = np.where(farther <= limit[:, None], np.iinfo(np.int64).max, farther)
        limit = farther.min(1)
    limit = np.where(squares.min(1) == 0, 0, limit)
    key, index = np.nonzero(squares <= limit[:, None])
    order = np.lexsort((index, squares[key, index], key))
    key, index = key[order], index[order]
    counts = np.bincount(key, minlength=len(digits))
    starts = np.cumsum(counts) - counts
    lists = starts << _START_SHIFT | np.where(limit == 0, 0, counts)
    entries = index << _INDEX_SHIFT | (numbers[index] << bits * np.arange(length) + 1).sum(1)
    entries = np.pad(entries, (0, WIDTH))  # the last list is read to a whole vector
    return lists.astype("<i4").tobytes(), entries.astype("<i4").tobytes()


def make_codebook(vectors: NDArray[np.int8], shells: int, ternary: bool = False) -> Codebook:
    """Of the decoder's vectors [n, length], whose distinct values are the levels; see `_tables`."""
    distinct, numbers = np.unique(vectors, return_inverse=True)
    length, levels = vectors.shape[1], len(distinct)
    bits = (levels - 1).bit_length()
    mask = ((1 << bits) - 1) << 1
    list_bytes, entry_bytes = _tables(numbers.reshape(vectors.shape), levels, bits, shells)
    lists, entries = constant_table(list_bytes), constant_table(entry_bytes)

    @inline
    def number(entry: Vector, i: int, shift: Vector) -> Vector:
        twice = (entry >> (bits * i)) & mask
        return to_float(twice >> 1) + (shift - 1.0) if ternary else to_float(twice | 1)

    @inline
    def nearest_of(first: int, n: int, x: int, weights: int, scale: float, shift: float) -> int:
        """The entry of one block among n from the address `first` on."""
        scales, shifts = splat(NEIGHBOURS, scale), splat(NEIGHBOURS, shift)
        least, place = splat(NEIGHBOURS, f32(math.inf)), splat(NEIGHBOUR_NUMBERS, 0)
        for begin in range(0, n, WIDTH):
            entry = load(NEIGHBOUR_NUMBERS, first + begin * 4)
            error = splat(NEIGHBOURS, 0.0)
            for i in range(length):
                difference = scales * number(entry, i, shifts) - load_f32(x + i * F32_BYTES)
                error += load_f32(weights + i * F32_BYTES) * difference * difference
            places = _lane_numbers() + begin
            is_better = (error < least) & (places < n)
            least, place = select(is_better, error, least), select(is_better, places, place)
        ties = select(least == min_lanes(least), place, splat(NEIGHBOUR_NUMBERS, _NONE))
        return load_i32(first + min_lanes(ties) * 4)

    @inline
    def nearest(keys: Vector, x: int, weights: int, scale: int, shift: int, to: int) -> None:
        store(to, keys)
        for lane in range(LANES):
            at = lane * 4
            word = load_i32(lists() + load_i32(to + at) * 4)
            first, n = entries() + (word >> _START_SHIFT) * 4, word & _LENGTH
            if n == 0:
                store_i32(to + at, load_i32(first))
            else:
                own_scale, own_shift = load_f32(scale + at), load_f32(shift + at)
                entry = nearest_of(first, n, x + at, weights + at, own_scale, own_shift)
                store_i32(to + at, entry | IS_NEIGHBOUR)

    return Codebook(length, levels, nearest, number)
