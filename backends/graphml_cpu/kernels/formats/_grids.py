"""What the readers of codebook formats share: rows of a table of vectors, and the signs of their elements.

A block of 256 weights has 32 vectors of 8 or 64 of 4. Knows no format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import U8x64, as_mask
from graphml_cpu.kernels.formats._unpack import U8x16
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    constant_lanes,
    constant_table,
    convert,
    gather,
    load,
    lookup16,
    select,
    shuffle_by,
    vector,
)

_U32x16, _U64x8, _U8x32 = vector("u32", 16), vector("u64", 8), vector("u8", 32)
_U32x32 = vector("u32", 32)


def make_rows_of_8(codes: NDArray[np.integer[Any]], offset: int, index: Callable[..., Any]) -> Any:
    """An inline function `rows(at, first)`: half of the four blocks of a reader's group, U8x64.

    `codes` [any, 8] plus `offset` are the vectors; `index(at, i)` is the number of vector i of the block of
    256 weights at `at`. A group's first half begins with vector `first`, 0 or 16; its second one two later.
    """
    table = constant_table((codes + offset).astype(np.uint8).tobytes())

    @inline
    def rows(at: int, first: int) -> Vector:
        offsets = (
            8 * index(at, first),
            8 * index(at, first + 1),
            8 * index(at, first + 4),
            8 * index(at, first + 5),
            8 * index(at, first + 8),
            8 * index(at, first + 9),
            8 * index(at, first + 12),
            8 * index(at, first + 13),
        )
        return bitcast(U8x64, gather(_U64x8, table(), offsets))

    return rows


def make_rows_of_4(codes: NDArray[np.integer[Any]], offset: int, index: Callable[..., Any]) -> Any:
    """As `make_rows_of_8` for `codes` [any, 4]: `first` is 0 or 32, the second half begins four later."""
    table = constant_table((codes + offset).astype(np.uint8).tobytes())

    @inline
    def four(at: int, first: int) -> Any:
        return (
            4 * index(at, first),
            4 * index(at, first + 1),
            4 * index(at, first + 2),
            4 * index(at, first + 3),
        )

    @inline
    def rows(at: int, first: int) -> Vector:
        offsets = four(at, first) + four(at, first + 8) + four(at, first + 16) + four(at, first + 24)
        return bitcast(U8x64, gather(_U32x16, table(), offsets))

    return rows


# Which of the 32 bytes of signs of a block belong to which half of which group.
_SIGNS = {
    (group, half): shuffle_by([16 * group + 4 * block + 2 * half + i for block in range(4) for i in range(2)])
    for group in range(2)
    for half in range(2)
}


def make_with_signs(group: int, half: int, offset: int) -> Any:
    """An inline function `with_signs(values, signs)`: numbers plus `offset`, the numbers negated by signs.

    `signs` U8x32 are those of the block's 256 weights, the lowest bit of each byte first, set for minus.
    """
    pick, twice = _SIGNS[group, half], 2 * offset

    @inline
    def with_signs(values: Vector, signs: Vector) -> Vector:
        return select(as_mask(pick(signs)), twice - values, values)

    return with_signs


# The highest bit where the number of bits that are set is odd.
_odd = constant_table(bytes(0x80 * (number.bit_count() & 1) for number in range(16)))


@inline
def even_signs(seven: Vector) -> Vector:
    """Signs of 8 elements from 7 bits each (U8x32, below 128): the eighth makes their number even."""
    table = load(U8x16, _odd())
    return seven | (lookup16(table, seven & 15) ^ lookup16(table, seven >> 4))


_sevens = constant_lanes(_U32x32, [7 * (lane % 4) for lane in range(32)])
_four_times = shuffle_by([lane // 4 for lane in range(32)])


@inline
def even_signs_of_words(words: Vector) -> Vector:
    """The signs of a block from 8 words with four times seven bits each, the lowest first."""
    return even_signs(convert(_U8x32, (_four_times(words) >> _sevens()) & 127))
