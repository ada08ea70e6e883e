"""Weights of four rows interleaved by words, before they are unpacked: `CpuFormatReader.read_words` has them.

Bytes that hold two or more weights are moved while they are packed, which takes half the moves. Knows where
nibbles and further bits of a group stand in a format; knows no format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import U8x64
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, load, shuffle_by, shuffle_pair_by, vector

_U32x16, _U8x32 = vector("u32", 16), vector("u8", 32)


def _quarters(order: list[tuple[int, int]]) -> Any:
    """An operation: quarters of two vectors, each (which vector, which quarter)."""
    return shuffle_pair_by([16 * which + 4 * quarter + lane for which, quarter in order for lane in range(4)])


_first_two, _last_two = (
    _quarters([(0, 0), (0, 1), (1, 0), (1, 1)]),
    _quarters([(0, 2), (0, 3), (1, 2), (1, 3)]),
)
_even, _odd = _quarters([(0, 0), (0, 2), (1, 0), (1, 2)]), _quarters([(0, 1), (0, 3), (1, 1), (1, 3)])


def _make_transpose(early_pair: Any, late_pair: Any, even: Any, odd: Any) -> Any:
    """Four vectors of parts of four others: pairs of a and b, and of c and d, then pairs of those."""

    @inline
    def transpose(a: Vector, b: Vector, c: Vector, d: Vector) -> Any:
        a, b, c, d = bitcast(_U32x16, a), bitcast(_U32x16, b), bitcast(_U32x16, c), bitcast(_U32x16, d)
        early, other_early = early_pair(a, b), early_pair(c, d)
        late, other_late = late_pair(a, b), late_pair(c, d)
        first, second = even(early, other_early), odd(early, other_early)
        third, fourth = even(late, other_late), odd(late, other_late)
        return bitcast(U8x64, first), bitcast(U8x64, second), bitcast(U8x64, third), bitcast(U8x64, fourth)

    return transpose


by_quarter = _make_transpose(_first_two, _last_two, _even, _odd)
"""Four vectors: the first quarters of a, b, c and d, then their second, third and fourth ones."""

_pairs_low, _pairs_high, _doubles_low, _doubles_high = (
    shuffle_pair_by(
        [lane for quarter in range(0, 16, 4) for lane in (quarter + p, q + quarter, r + quarter, s + quarter)]
    )
    for p, q, r, s in ((0, 16, 1, 17), (2, 18, 3, 19), (0, 1, 16, 17), (2, 3, 18, 19))
)
by_word = _make_transpose(_pairs_low, _pairs_high, _doubles_low, _doubles_high)
"""Four vectors: within each quarter words 0 of a, b, c and d, then words 1, 2 and 3."""

_quarters_of_rows = shuffle_by([4 * block + row for row in range(4) for block in range(4)])


@inline
def rows_first(values: Vector) -> Vector:
    """Words in lanes 4 * block + row moved to lanes 4 * row + block."""
    return bitcast(U8x64, _quarters_of_rows(bitcast(_U32x16, values)))


def make_two_runs(place_of: Callable[[int], tuple[int, int]]) -> Callable[..., Any]:
    """An inline function `blocks(low, high) -> (word, word 4 further on)`: words of all four blocks.

    Of two runs of 32 bytes, interleaved by `by_word`; low, high: both nibbles of their bytes.
    place_of: of block 0 to 3 (which of the two, which run).
    """

    def make_pick(later: int) -> Any:
        lanes = [(*place_of(block), row) for row in range(4) for block in range(4)]
        return shuffle_pair_by([16 * which + 8 * run + 4 * later + row for which, run, row in lanes])

    early, late = make_pick(0), make_pick(1)

    @inline
    def blocks(low: Vector, high: Vector) -> Any:
        low, high = bitcast(_U32x16, low), bitcast(_U32x16, high)
        return bitcast(U8x64, early(low, high)), bitcast(U8x64, late(low, high))

    return blocks


@inline
def halves_of(a: Any, b: Any, c: Any, d: Any) -> Any:
    """What `make_two_runs` gives of words 0 to 3 as `CpuFormatReader.read_words` gives it."""
    return (a[0], b[0], c[0], d[0]), (a[1], b[1], c[1], d[1])


_twice = shuffle_by([byte % 32 for byte in range(64)])


@inline
def run_twice(at: int) -> Vector:
    """32 bytes, twice."""
    return _twice(load(_U8x32, at))
