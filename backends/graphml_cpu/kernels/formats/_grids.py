"""What the readers of codebook formats share: vectors by number, and the signs of their elements.

A block of 256 weights has 32 vectors of 8 or 64 of 4. Codebooks have few different numbers: a vector is a
word of 2 or 3 bits each, so that a table of them is small, and it is unpacked where it is wanted. Knows no
format.
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
    word_lookup,
)

_U64x8, _U8x32, _U16x32, _U32x32 = vector("u64", 8), vector("u8", 32), vector("u16", 32), vector("u32", 32)


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


def _make_half(which: int, width: int, bits: int, levels: list[int], offset: int) -> Callable[..., Any]:
    """Half `which` (0 to 3) of a block: words of codes, `bits` each, to bytes (`_words_of`)."""
    copies, group, half = width // 2, which // 2, which % 2
    per_block = 32 // width
    # The second group of vectors of 4 has words of its own.
    start = (16 * group if width == 8 else 0) + half * per_block // 2
    numbers = [start + block * per_block + i for block in range(4) for i in range(per_block // 2)]
    spread = shuffle_by([number for number in numbers for _ in range(copies)])
    shifts = constant_lanes(_U16x32, [bits * (lane % copies) for lane in range(32)])
    mask, twice = ((1 << bits) - 1) * 0x0101, 2 * offset
    table = constant_table(bytes(level + offset for level in levels).ljust(16))
    signs_of = shuffle_by([16 * group + 4 * block + 2 * half + i for block in range(4) for i in range(2)])

    @inline
    def make_half(words: Vector, signs: Vector) -> Vector:
        codes = bitcast(U8x64, (spread(words) >> shifts()) & mask)
        values = lookup16(load(U8x16, table()), codes)
        return select(as_mask(signs_of(signs)), twice - values, values)

    return make_half


def _words_of(codes: NDArray[np.integer[Any]], levels: list[int], bits: int) -> list[int]:
    """Each vector as a word of the numbers of its levels: even elements in the low byte, odd in the high."""
    numbers = np.searchsorted(levels, codes).astype(np.int64)
    count = codes.shape[1] // 2
    shifts = bits * np.arange(count)
    low, high = ((numbers[:, parity::2] << shifts).sum(axis=1) for parity in (0, 1))
    return [int(word) for word in low + (high << 8)]


def make_grid(codes: NDArray[np.integer[Any]], offset: int) -> Any:
    """An inline function `signed_vectors(indices, signs)` of a codebook of up to 4 or 8 positive numbers.

    Gives both groups of a block of 256 weights, each as two U8x64, numbers plus `offset`, negated by signs.
    codes [64 .. 1024, 8 or 4]. indices: U16x32, of the block's 32 vectors of 8, or two such of its 64 of 4.
    signs: U8x32, the lowest bit of each byte first, set for minus.
    """
    width, levels = codes.shape[1], [int(level) for level in np.unique(codes)]
    bits = 2 if width == 8 else 3
    look_up = word_lookup(_words_of(codes, levels, bits))
    low, high, second_low, second_high = (
        _make_half(which, width, bits, levels, offset) for which in range(4)
    )

    @inline
    def vectors_of_8(indices: Vector, signs: Vector) -> Any:
        words = look_up(indices)
        return (low(words, signs), high(words, signs)), (second_low(words, signs), second_high(words, signs))

    @inline
    def vectors_of_4(indices: tuple[Vector, Vector], signs: Vector) -> Any:
        words, more = look_up(indices[0]), look_up(indices[1])
        return (low(words, signs), high(words, signs)), (second_low(more, signs), second_high(more, signs))

    return vectors_of_8 if width == 8 else vectors_of_4


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
