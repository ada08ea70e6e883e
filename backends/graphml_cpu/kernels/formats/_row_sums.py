"""Integer sums of four rows of weights times a token, of bytes in the order in which a file has them.

What `CpuFormatReader.sums` is made of. A run of 32 bytes has two blocks in its nibbles, or parts of two. Its
bytes are not brought into the order of the packed activations: the token's bytes are, once for four rows, and
where a quarter of a vector has not one block, the sums are moved, not the weights. Needs an instruction that
multiplies unsigned bytes of all values. Knows the packed layout; knows no format.
"""

from __future__ import annotations

from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import I8x64, U8x64
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import constant_lanes, dot4, load, shuffle_by, shuffle_pair_by, vector, zero

I32x16 = vector("i32", 16)

# Of four vectors, each with four lanes a block: the sums of these lanes, the blocks of each vector together.
_pairs_low = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q, 16 + q, q + 1, 17 + q)])
_pairs_high = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q + 2, 18 + q, q + 3, 19 + q)])
_doubles_low = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q, q + 1, 16 + q, 17 + q)])
_doubles_high = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q + 2, q + 3, 18 + q, 19 + q)])


@inline
def quarter_sums(a: Vector, b: Vector, c: Vector, d: Vector) -> Vector:
    """I32x16: the sums of the first quarters of a, b, c and d, then of their second, third and fourth."""
    first = _pairs_low(a, b) + _pairs_high(a, b)
    second = _pairs_low(c, d) + _pairs_high(c, d)
    return _doubles_low(first, second) + _doubles_high(first, second)


rows_first = shuffle_by([4 * quarter + row for row in range(4) for quarter in range(4)])
"""What `quarter_sums` gives in lanes 4 * row + quarter."""


def _token_quarters(order: list[tuple[int, int]]) -> Any:
    """An operation: of both halves of a token's blocks, each quarter (which half, which block)."""
    return shuffle_pair_by([64 * half + 16 * block + byte for half, block in order for byte in range(16)])


def _nibbles_in_place(order: tuple[int, ...]) -> Any:
    """A constant: for each quarter the bits of its low nibbles, 0, or of its high ones, 1."""
    return constant_lanes(U8x64, [(0x0F, 0xF0)[which] for which in order for _ in range(16)])


_own, _crossed = (
    _token_quarters([(0, 0), (1, 1), (0, 2), (1, 3)]),
    _token_quarters([(0, 1), (1, 0), (0, 3), (1, 2)]),
)
_own_nibbles, _crossed_nibbles = _nibbles_in_place((0, 1, 0, 1)), _nibbles_in_place((1, 0, 1, 0))
_cross = shuffle_by([4 * (quarter ^ 1) + lane for quarter in range(4) for lane in range(4)])
_high_nibbles = constant_lanes(I32x16, [0, 4, 0, 4] * 4)


@inline
def sums_of_runs(a: int, b: int, c: int, d: int, x: int) -> Vector:
    """Sums in lanes 4 * row + block, of 64 bytes of each row: blocks 2 r and 2 r + 1 are run r's nibbles.

    High nibbles are multiplied where they are, as 16 times their value.
    """
    low, high = load(I8x64, x), load(I8x64, x + packed.HIGH_HALF)
    own, crossed = _own(low, high), _crossed(low, high)
    first, second = _of_a_row(a, own, crossed), _of_a_row(b, own, crossed)
    third, fourth = _of_a_row(c, own, crossed), _of_a_row(d, own, crossed)
    return rows_first(quarter_sums(first, second, third, fourth)) >> _high_nibbles()


@inline
def _of_a_row(at: int, own: Vector, crossed: Vector) -> Vector:
    # Half of the quarters meet the block of their neighbour first.
    both = load(U8x64, at)
    found = _cross(dot4(zero(I32x16), both & _crossed_nibbles(), crossed))
    return dot4(found, both & _own_nibbles(), own)


_first_two, _last_two = (
    _token_quarters([(0, 0), (1, 0), (0, 1), (1, 1)]),
    _token_quarters([(0, 2), (1, 2), (0, 3), (1, 3)]),
)
# Of the seeds of both halves of blocks, the first lane of each quarter; other lanes are zeros.
_first_seeds, _last_seeds = (
    shuffle_pair_by([16 if lane % 4 else first + (0, 1, 4, 5)[lane // 4] for lane in range(16)])
    for first in (0, 8)
)
# From quarters that are halves of blocks 0 and 1, and of 2 and 3, lanes 4 * row + block of either half.
_low_halves, _high_halves = (
    shuffle_pair_by(
        [16 * (block // 2) + 4 * (2 * (block % 2) + half) + row for row in range(4) for block in range(4)]
    )
    for half in range(2)
)


@inline
def tokens_by_block(x: int) -> tuple[Vector, Vector]:
    """A token's blocks 0 and 1, and its blocks 2 and 3, each whole."""
    low, high = load(I8x64, x), load(I8x64, x + packed.HIGH_HALF)
    return _first_two(low, high), _last_two(low, high)


@inline
def seeds_by_block(x: int, shift: int) -> tuple[Vector, Vector]:
    """What integer sums with `tokens_by_block` begin with."""
    seeds = load(I32x16, x + packed.SEEDS) >> shift
    return _first_seeds(seeds, zero(I32x16)), _last_seeds(seeds, zero(I32x16))


@inline
def halves_of_blocks(first: Vector, last: Vector) -> tuple[Vector, Vector]:
    """From the `quarter_sums` of blocks 0 and 1 and of 2 and 3 the sums of low and high halves."""
    return _low_halves(first, last), _high_halves(first, last)
