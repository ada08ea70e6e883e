"""Groups of 128 weights of four rows, as a `CpuFormatReader` gives them, times a token's packed group.

A vector holds the products of each of the four blocks of each row: the integer sum of a block's lanes is
exact, and becomes one float. What is done with it, and in which order, is what `integer_tiles` does. Knows
the packed layout and what a `CpuFormatReader` says; knows nothing of formats, matrices or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, F32x4, I8x64, U8x64
from graphml_cpu.kernels.formats._row_sums import quarter_sums, rows_first
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
    to_float,
    vector,
    zero,
)

I32x16 = vector("i32", 16)
_repeat = shuffle_by([lane % 4 for lane in range(16)])


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


def make_operand(reader: CpuFormatReader, for_panel: bool = False) -> Operand:
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


def _make_dots(reader: CpuFormatReader) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
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


def reads_sums(reader: CpuFormatReader) -> bool:
    """Whether four rows are multiplied by the reader itself, their bytes in the order of the file."""
    return reader.sums is not None and target.current().vector_bytes == 64


def make_find_rows(reader: CpuFormatReader) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """As `make_read_rows`, for `make_add_groups`: where the reader `reads_sums`, addresses for units."""
    numbers = reader.read_numbers

    @inline
    def find(ws: Any, at: int) -> Any:
        found = ws[0] + at, ws[1] + at, ws[2] + at, ws[3] + at
        return found, numbers(found[0], found[1], found[2], found[3])

    read, read_rest = make_read_rows(reader)
    return find if reads_sums(reader) else read, read_rest


def make_read_rows(reader: CpuFormatReader) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions `read(ws, at)`, `read_rest(ws, at, blocks)`: the units of four rows at byte `at`.

    They give the four units, and their scales and minima as `CpuFormatReader.read_numbers` does.
    """
    one, one_rest, groups = reader.read, reader.read_rest, reader.groups
    join, second = _make_join(reader, 0), _make_join(reader, groups - 1)
    numbers, rest_numbers = reader.read_numbers, reader.read_rest_numbers

    @inline
    def joined(units: Any) -> Any:
        return join(units), second(units)

    @inline
    def read(ws: Any, at: int) -> Any:
        units = one(ws[0] + at), one(ws[1] + at), one(ws[2] + at), one(ws[3] + at)
        return units, joined(units)

    @inline
    def read_together(ws: Any, at: int) -> Any:
        units = one(ws[0] + at), one(ws[1] + at), one(ws[2] + at), one(ws[3] + at)
        return units, numbers(ws[0] + at, ws[1] + at, ws[2] + at, ws[3] + at)

    @inline
    def read_rest(ws: Any, at: int, blocks: int) -> Any:
        a, b = one_rest(ws[0] + at, blocks), one_rest(ws[1] + at, blocks)
        units = a, b, one_rest(ws[2] + at, blocks), one_rest(ws[3] + at, blocks)
        return units, joined(units)

    @inline
    def read_rest_together(ws: Any, at: int, blocks: int) -> Any:
        a, b = one_rest(ws[0] + at, blocks), one_rest(ws[1] + at, blocks)
        units = a, b, one_rest(ws[2] + at, blocks), one_rest(ws[3] + at, blocks)
        return units, rest_numbers(ws[0] + at, ws[1] + at, ws[2] + at, ws[3] + at, blocks)

    return read_together if numbers else read, read_rest_together if rest_numbers else read_rest


@inline
def _four(a: Vector, b: Vector, c: Vector, d: Vector) -> Vector:
    return concatenate(concatenate(a, b), concatenate(c, d))


def _make_join(reader: CpuFormatReader, index: int) -> Callable[..., Any]:
    """An inline function `join(units)`: scales and minima of group `index`, of four rows' units."""

    def make_scales(half: int) -> Callable[..., Any]:
        @inline
        def scales(units: Any) -> Vector:
            a, b, c, d = units[0][index], units[1][index], units[2][index], units[3][index]
            return _four(a[1][half], b[1][half], c[1][half], d[1][half])

        return scales

    low, high = make_scales(0), make_scales(reader.scales - 1)

    @inline
    def one_scale(units: Any) -> Any:
        return (low(units),)

    @inline
    def two_scales(units: Any) -> Any:
        return low(units), high(units)

    @inline
    def no_minima(units: Any) -> Any:
        return ()

    @inline
    def one_minimum(units: Any) -> Any:
        a, b, c, d = units[0][index], units[1][index], units[2][index], units[3][index]
        return (_four(a[2], b[2], c[2], d[2]),)

    @inline
    def two_minima(units: Any) -> Any:
        a, b, c, d = units[0][index][2], units[1][index][2], units[2][index][2], units[3][index][2]
        first = _four(low_half(a), low_half(b), low_half(c), low_half(d))
        return first, _four(high_half(a), high_half(b), high_half(c), high_half(d))

    scales = one_scale if reader.scales == 1 else two_scales
    minima = (no_minima, one_minimum, two_minima)[reader.minima]

    @inline
    def join(units: Any) -> Any:
        return scales(units), minima(units)

    return join


def make_add_groups(reader: CpuFormatReader, index: int) -> Callable[..., Any]:
    """An inline function `add(found, x, total) -> total`: four products of group `index` of units.

    found: what `make_find_rows` gives of four rows; x: the address of the token's packed group. total:
    F32x16, four sums for each row, one for each block of a group.
    """

    def make_sums(dots: Callable[..., Any]) -> Callable[..., Any]:
        @inline
        def sums(units: Any, x: int) -> Vector:
            a, b = dots(units[0][index], x), dots(units[1][index], x)
            c, d = dots(units[2][index], x), dots(units[3][index], x)
            return to_float(rows_first(quarter_sums(a, b, c, d)))

        return sums

    def make_given_sums(half: int) -> Callable[..., Any]:
        @inline
        def sums(units: Any, x: int) -> Vector:
            return to_float(given(units[0], units[1], units[2], units[3], index, x)[half])

        return sums

    given = reader.sums
    if reads_sums(reader):
        of_blocks, of_low, of_high = (make_given_sums(half) for half in (0, 0, reader.scales - 1))
    else:
        of_blocks, of_low, of_high = (make_sums(dots) for dots in _make_dots(reader))

    @inline
    def add_blocks(found: Any, x: int, total: Vector) -> Vector:
        units, numbers = found
        return fma(of_blocks(units, x) * _repeat(load(F32x4, x + packed.SCALE)), numbers[index][0][0], total)

    @inline
    def add_halves(found: Any, x: int, total: Vector) -> Vector:
        units, numbers = found
        scales = numbers[index][0]
        scaled = fma(of_high(units, x), scales[1], of_low(units, x) * scales[0])
        return fma(scaled, _repeat(load(F32x4, x + packed.SCALE)), total)

    @inline
    def no_minima(found: Any, x: int, total: Vector) -> Vector:
        return total

    @inline
    def minima_of_blocks(found: Any, x: int, total: Vector) -> Vector:
        return fma(found[1][index][1][0], _repeat(load(F32x4, x + packed.SUM)), total)

    @inline
    def minima_of_halves(found: Any, x: int, total: Vector) -> Vector:
        minima = found[1][index][1]
        total = fma(minima[0], _repeat(load(F32x4, x + packed.LOW_SUM)), total)
        return fma(minima[1], _repeat(load(F32x4, x + packed.HIGH_SUM)), total)

    add_products = add_blocks if reader.scales == 1 else add_halves
    add_minima = (no_minima, minima_of_blocks, minima_of_halves)[reader.minima]

    @inline
    def add(found: Any, x: int, total: Vector) -> Vector:
        return add_minima(found, x, add_products(found, x, total))

    return add


_neighbours = shuffle_by([lane ^ 1 for lane in range(16)])
_pairs = shuffle_by([lane ^ 2 for lane in range(16)])


@inline
def finish(sums: Vector) -> Vector:
    """The four products, (0 + 1) + (2 + 3) of the sums of each, in lanes 0, 4, 8 and 12."""
    both = sums + _neighbours(sums)
    return both + _pairs(both)
