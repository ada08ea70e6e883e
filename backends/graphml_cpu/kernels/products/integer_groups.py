"""Groups of 128 weights, as a format's `Reader` gives them, times tokens' packed groups: four products.

They are those of four rows of weights and a token, of two and two, or of one and four. A vector holds the
four products of each of the four blocks: the integer sum of a block's lanes is exact, and becomes one float.
What is done with it, and in which order, is what `integer_tiles` does. Knows the packed layout and what a
`Reader` says; knows nothing of formats, matrices or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import F32x4, I8x64, Reader, U8x64
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    concatenate,
    constant_lanes,
    dot4,
    dot4_signed,
    fma,
    high_half,
    load,
    low_half,
    shuffle_by,
    shuffle_pair_by,
    to_float,
    vector,
    zero,
)

I32x16 = vector("i32", 16)


@dataclass(frozen=True)
class Operand:
    """How a reader's values enter the dot product: `dot(total, prepare(values), activations)`.

    The instruction wants one unsigned operand. `shift`: by how many bits a seed is shifted right to leave the
    offset of the prepared values away; None: they have no offset.
    """

    dot: Callable[..., Any]
    prepare: Callable[..., Any]
    shift: int | None
    signed: bool


@inline
def _as_it_is(values: Vector) -> Vector:
    return values


def _make_raise(by: int) -> Callable[..., Any]:
    @inline
    def raised(values: Vector) -> Vector:
        return bitcast(U8x64, values) + by

    return raised


def make_operand(reader: Reader, for_panel: bool = False) -> Operand:
    """The operand of a reader's values at the level of the process.

    A panel's values are prepared once for many tokens: where an unsigned byte may have all its values, their
    offset is made 128, so that tokens need not shift their seeds.
    """
    vnni = target.current().has_vnni
    if reader.signed and not vnni:
        return Operand(dot4_signed, _as_it_is, shift=None, signed=True)
    if reader.signed:
        return Operand(dot4, _make_raise(128), shift=0, signed=False)
    if not reader.offset:
        return Operand(dot4, _as_it_is, shift=None, signed=False)
    if vnni and for_panel:
        return Operand(dot4, _make_raise(128 - reader.offset), shift=0, signed=False)
    return Operand(dot4, _as_it_is, shift=8 - reader.offset.bit_length(), signed=False)


def make_seed(shift: int | None, lanes: tuple[int, ...] | None) -> Callable[..., Any]:
    """An inline function `seed(x)`: what the integer sums of the group at `x` begin with.

    `lanes`: which of a block's four seeds count; None: all, that is both halves of the block.
    """
    mask = constant_lanes(I32x16, [-1 if lane % 4 in (lanes or ()) else 0 for lane in range(16)])

    @inline
    def nothing(x: int) -> Vector:
        return zero(I32x16)

    @inline
    def everything(x: int) -> Vector:
        return load(I32x16, x + packed.SEEDS) >> shift

    @inline
    def some(x: int) -> Vector:
        return (load(I32x16, x + packed.SEEDS) & mask()) >> shift

    if shift is None:
        return nothing
    return some if lanes else everything


def _make_dots(reader: Reader) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Inline functions `dots(group, x)`: integer products, summed four by four; of a block, of its halves."""
    operand = make_operand(reader)
    dot, prepare = operand.dot, operand.prepare
    both, low_seed, high_seed = (make_seed(operand.shift, lanes) for lanes in (None, (0,), (1,)))

    @inline
    def of_blocks(group: Any, x: int) -> Vector:
        found = dot(both(x), prepare(group[0][0]), load(I8x64, x))
        return dot(found, prepare(group[0][1]), load(I8x64, x + packed.HIGH_HALF))

    @inline
    def of_low(group: Any, x: int) -> Vector:
        return dot(low_seed(x), prepare(group[0][0]), load(I8x64, x))

    @inline
    def of_high(group: Any, x: int) -> Vector:
        return dot(high_seed(x), prepare(group[0][1]), load(I8x64, x + packed.HIGH_HALF))

    return of_blocks, of_low, of_high


def make_read_rows(reader: Reader, rows: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions `read(ws, at)`, `read_rest(ws, at, blocks)`: the units of `rows` rows at byte `at`."""
    read, read_rest = reader.read, reader.read_rest

    @inline
    def one(ws: Any, at: int) -> Any:
        return (read(ws[0] + at),)

    @inline
    def two(ws: Any, at: int) -> Any:
        return read(ws[0] + at), read(ws[1] + at)

    @inline
    def four(ws: Any, at: int) -> Any:
        return read(ws[0] + at), read(ws[1] + at), read(ws[2] + at), read(ws[3] + at)

    @inline
    def rest_of_one(ws: Any, at: int, blocks: int) -> Any:
        return (read_rest(ws[0] + at, blocks),)

    @inline
    def rest_of_two(ws: Any, at: int, blocks: int) -> Any:
        return read_rest(ws[0] + at, blocks), read_rest(ws[1] + at, blocks)

    @inline
    def rest_of_four(ws: Any, at: int, blocks: int) -> Any:
        a, b = read_rest(ws[0] + at, blocks), read_rest(ws[1] + at, blocks)
        return a, b, read_rest(ws[2] + at, blocks), read_rest(ws[3] + at, blocks)

    return {1: (one, rest_of_one), 2: (two, rest_of_two), 4: (four, rest_of_four)}[rows]


def make_pick(rows: int, index: int) -> Callable[..., Any]:
    """An inline function `pick(units)`: group number `index` of the units of `rows` rows."""

    @inline
    def one(units: Any) -> Any:
        return (units[0][index],)

    @inline
    def two(units: Any) -> Any:
        return units[0][index], units[1][index]

    @inline
    def four(units: Any) -> Any:
        return units[0][index], units[1][index], units[2][index], units[3][index]

    return {1: one, 2: two, 4: four}[rows]


# Of four vectors, each with four lanes a block: the sums of these lanes, the blocks of each vector together.
pairs_low = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q, 16 + q, q + 1, 17 + q)])
pairs_high = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q + 2, 18 + q, q + 3, 19 + q)])
doubles_low = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q, q + 1, 16 + q, 17 + q)])
doubles_high = shuffle_pair_by([lane for q in range(0, 16, 4) for lane in (q + 2, q + 3, 18 + q, 19 + q)])
_by_product = shuffle_by([4 * block + product for product in range(4) for block in range(4)])


@inline
def block_sums(a: Vector, b: Vector, c: Vector, d: Vector) -> Vector:
    """I32x16: the sums of the first blocks of a, b, c and d, then of their second, third and fourth."""
    first = pairs_low(a, b) + pairs_high(a, b)
    second = pairs_low(c, d) + pairs_high(c, d)
    return doubles_low(first, second) + doubles_high(first, second)


@inline
def _four(a: Vector, b: Vector, c: Vector, d: Vector) -> Vector:
    return concatenate(concatenate(a, b), concatenate(c, d))


def make_add_groups(reader: Reader, rows: int) -> Callable[..., Any]:
    """An inline function `add(groups, xs, at, total) -> total`: four products of a group each.

    `groups` are those of `rows` (1, 2 or 4) rows of weights, `xs` the addresses of 4 / `rows` tokens' rows,
    `at` the byte of the packed group in them. total: F32x16, four sums for each product, one for each block
    of a group; products by row and then by token.
    """
    r0, r1, r2, r3 = (product * rows // 4 for product in range(4))
    t0, t1, t2, t3 = (product % (4 // rows) for product in range(4))

    def make_sums(dots: Callable[..., Any]) -> Callable[..., Any]:
        @inline
        def sums(groups: Any, xs: Any, at: int) -> Vector:
            a, b = dots(groups[r0], xs[t0] + at), dots(groups[r1], xs[t1] + at)
            c, d = dots(groups[r2], xs[t2] + at), dots(groups[r3], xs[t3] + at)
            return to_float(_by_product(block_sums(a, b, c, d)))

        return sums

    of_blocks, of_low, of_high = (make_sums(dots) for dots in _make_dots(reader))

    @inline
    def numbers(xs: Any, at: int) -> Vector:
        a, b = load(F32x4, xs[t0] + at), load(F32x4, xs[t1] + at)
        return _four(a, b, load(F32x4, xs[t2] + at), load(F32x4, xs[t3] + at))

    def make_scales(half: int) -> Callable[..., Any]:
        @inline
        def scales(groups: Any) -> Vector:
            return _four(groups[r0][1][half], groups[r1][1][half], groups[r2][1][half], groups[r3][1][half])

        return scales

    scales, high_scales = make_scales(0), make_scales(reader.scales - 1)

    @inline
    def add_blocks(groups: Any, xs: Any, at: int, total: Vector) -> Vector:
        scaled = of_blocks(groups, xs, at) * numbers(xs, at + packed.SCALE)
        return fma(scaled, scales(groups), total)

    @inline
    def add_halves(groups: Any, xs: Any, at: int, total: Vector) -> Vector:
        low = of_low(groups, xs, at) * scales(groups)
        scaled = fma(of_high(groups, xs, at), high_scales(groups), low)
        return fma(scaled, numbers(xs, at + packed.SCALE), total)

    @inline
    def no_minima(groups: Any, xs: Any, at: int, total: Vector) -> Vector:
        return total

    @inline
    def minima_of_blocks(groups: Any, xs: Any, at: int, total: Vector) -> Vector:
        least = _four(groups[r0][2], groups[r1][2], groups[r2][2], groups[r3][2])
        return fma(least, numbers(xs, at + packed.SUM), total)

    @inline
    def minima_of_halves(groups: Any, xs: Any, at: int, total: Vector) -> Vector:
        a, b, c, d = groups[r0][2], groups[r1][2], groups[r2][2], groups[r3][2]
        low = _four(low_half(a), low_half(b), low_half(c), low_half(d))
        total = fma(low, numbers(xs, at + packed.LOW_SUM), total)
        high = _four(high_half(a), high_half(b), high_half(c), high_half(d))
        return fma(high, numbers(xs, at + packed.HIGH_SUM), total)

    add_products = add_blocks if reader.scales == 1 else add_halves
    add_minima = (no_minima, minima_of_blocks, minima_of_halves)[reader.minima]

    @inline
    def add(groups: Any, xs: Any, at: int, total: Vector) -> Vector:
        return add_minima(groups, xs, at, add_products(groups, xs, at, total))

    return add
