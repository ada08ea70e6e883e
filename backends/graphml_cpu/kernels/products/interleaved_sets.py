"""Four rows of quantised weights interleaved in registers, and their products with tokens.

Lane 4 * block + row of eight vectors holds the row's bytes 4c to 4c + 3 of a half of the block; scales and
minima are in the same lanes. So a dot product with a token's bytes (`interleaved_tokens`) adds up a block in
its lane: no sum crosses lanes, and a vector of sums has four for each row, one for each block of a group.
They are added up as `integer_rows` does, to the bit. Knows what a `Reader` says, and how a unit is put down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import F32x16, I8x64, Reader, U8x64
from graphml_cpu.kernels.products import interleaved_tokens
from graphml_cpu.kernels.products.integer_groups import (
    I32x16,
    doubles_high,
    doubles_low,
    make_operand,
    pairs_high,
    pairs_low,
)
from graphml_cpu.kernels.products.integer_panels import ROW_GROUP_BYTES
from graphml_cpu.kernels.products.interleaved_tokens import SCALE, SEEDS, token_bytes
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, fma, load, low_half, shuffle_by, store, to_float, zero

# Where a row's group has the vector of the four rows: the first two rows' have scales, the others' minima.
_SCALES = 128
_MINIMA = _SCALES + 2 * packed.UNIT_ROW_BYTES
_by_block = shuffle_by([4 * row + block for block in range(4) for row in range(4)])
_other_of_pair = shuffle_by([lane ^ 4 for lane in range(16)])
_other_pair = shuffle_by([lane ^ 8 for lane in range(16)])


def make_put_set(reader: Reader) -> Callable[..., Any]:
    """An inline function `put(to, found)`: what `make_read_rows` reads of four rows, to `to`.

    A row takes UNIT_ROW_BYTES, and each group of it ROW_GROUP_BYTES: its values and one vector of those that
    the four rows share.
    """
    prepare, unit = make_operand(reader, for_panel=True).prepare, packed.UNIT_ROW_BYTES
    groups = reader.groups

    @inline
    def put_row(to: int, row: Any) -> None:
        store(to, prepare(row[0][0]))
        store(to + 64, prepare(row[0][1]))

    def make_put_numbers(kind: int, count: int) -> Callable[..., Any]:
        @inline
        def none(to: int, numbers: Any) -> None:
            pass

        @inline
        def one(to: int, numbers: Any) -> None:
            store(to, _by_block(numbers[kind][0]))

        @inline
        def two(to: int, numbers: Any) -> None:
            store(to, _by_block(numbers[kind][0]))
            store(to + unit, _by_block(numbers[kind][1]))

        return (none, one, two)[count]

    put_scales, put_minima = make_put_numbers(0, reader.scales), make_put_numbers(1, reader.minima)

    def make_put_group(index: int) -> Callable[..., Any]:
        @inline
        def put_group(to: int, found: Any) -> None:
            units, numbers = found
            put_row(to, units[0][index])
            put_row(to + unit, units[1][index])
            put_row(to + 2 * unit, units[2][index])
            put_row(to + 3 * unit, units[3][index])
            put_scales(to + _SCALES, numbers[index])
            put_minima(to + _MINIMA, numbers[index])

        return put_group

    first, second = make_put_group(0), make_put_group(groups - 1)

    @inline
    def put_one(to: int, found: Any) -> None:
        first(to, found)

    @inline
    def put_two(to: int, found: Any) -> None:
        first(to, found)
        second(to + ROW_GROUP_BYTES, found)

    return put_one if groups == 1 else put_two


def make_load_set(reader: Reader) -> Callable[..., Any]:
    """An inline function `load_set(at)`: four rows' group, as `make_put_set` leaves it, as vectors of a set.

    Eight vectors of values; scales, one or two; minima, none, one or two.
    """
    unit = packed.UNIT_ROW_BYTES

    @inline
    def four(at: int) -> Any:
        a, b = load(I32x16, at), load(I32x16, at + unit)
        c, d = load(I32x16, at + 2 * unit), load(I32x16, at + 3 * unit)
        left, right = pairs_low(a, b), pairs_low(c, d)
        late_left, late_right = pairs_high(a, b), pairs_high(c, d)
        return (
            bitcast(_VALUES, doubles_low(left, right)),
            bitcast(_VALUES, doubles_high(left, right)),
            bitcast(_VALUES, doubles_low(late_left, late_right)),
            bitcast(_VALUES, doubles_high(late_left, late_right)),
        )

    def make_numbers(count: int, place: int) -> Callable[..., Any]:
        @inline
        def none(at: int) -> Any:
            return ()

        @inline
        def one(at: int) -> Any:
            return (load(F32x16, at + place),)

        @inline
        def two(at: int) -> Any:
            return load(F32x16, at + place), load(F32x16, at + place + unit)

        return (none, one, two)[count]

    scales, minima = make_numbers(reader.scales, _SCALES), make_numbers(reader.minima, _MINIMA)
    _VALUES = I8x64 if make_operand(reader, for_panel=True).signed else U8x64

    @inline
    def load_set(at: int) -> Any:
        return four(at), four(at + 64), scales(at), minima(at)

    return load_set


def _make_add_minima(reader: Reader) -> Callable[..., Any]:
    """An inline function `add(row, at, total) -> total`: a set's minima times a token's sums."""
    sums_at = interleaved_tokens.minima_at(reader)

    @inline
    def no_minima(row: Any, at: int, total: Vector) -> Vector:
        return total

    @inline
    def one_minimum(row: Any, at: int, total: Vector) -> Vector:
        return fma(row[3][0], load(F32x16, at + sums_at), total)

    @inline
    def two_minima(row: Any, at: int, total: Vector) -> Vector:
        total = fma(row[3][0], load(F32x16, at + sums_at), total)
        return fma(row[3][1], load(F32x16, at + sums_at + 64), total)

    return (no_minima, one_minimum, two_minima)[reader.minima]


def make_add_tokens(reader: Reader) -> Callable[..., Any]:
    """An inline function `add(a, b, at, totals) -> totals`: two sets times two tokens.

    a, b: sets; the first token's group is at `at`, the second's behind it. Totals: of a and b with the first
    token, then with the second. The four dot products take turns, so that each may wait for its last term.
    """
    dot, seeds = make_operand(reader, for_panel=True).dot, interleaved_tokens.number_of_seeds(reader)
    size, minima = token_bytes(reader), _make_add_minima(reader)

    def make_seed(place: int) -> Callable[..., Any]:
        @inline
        def nothing(at: int) -> Vector:
            return zero(I32x16)

        @inline
        def seed(at: int) -> Vector:
            return load(I32x16, at + place)

        return seed if seeds else nothing

    low_seed, high_seed = make_seed(SEEDS), make_seed(SEEDS + 64)

    @inline
    def half(a: Any, b: Any, at: int, p: Vector, q: Vector, r: Vector, s: Vector) -> Any:
        x, y = load(I8x64, at + 0), load(I8x64, at + size + 0)
        p, q, r, s = dot(p, a[0], x), dot(q, b[0], x), dot(r, a[0], y), dot(s, b[0], y)
        x, y = load(I8x64, at + 64), load(I8x64, at + size + 64)
        p, q, r, s = dot(p, a[1], x), dot(q, b[1], x), dot(r, a[1], y), dot(s, b[1], y)
        x, y = load(I8x64, at + 128), load(I8x64, at + size + 128)
        p, q, r, s = dot(p, a[2], x), dot(q, b[2], x), dot(r, a[2], y), dot(s, b[2], y)
        x, y = load(I8x64, at + 192), load(I8x64, at + size + 192)
        p, q, r, s = dot(p, a[3], x), dot(q, b[3], x), dot(r, a[3], y), dot(s, b[3], y)
        return p, q, r, s

    @inline
    def scaled(whole: Vector, at: int, row: Any, total: Vector) -> Vector:
        return fma(to_float(whole) * load(F32x16, at + SCALE), row[2][0], total)

    @inline
    def add_blocks(a: Any, b: Any, at: int, totals: Any) -> Any:
        seed, next_seed, next = low_seed(at), low_seed(at + size), at + size
        p, q, r, s = half(a[0], b[0], at, seed, seed, next_seed, next_seed)
        p, q, r, s = half(a[1], b[1], at + 256, p, q, r, s)
        return (
            scaled(p, at, a, totals[0]), scaled(q, at, b, totals[1]),
            scaled(r, next, a, totals[2]), scaled(s, next, b, totals[3]),
        )  # fmt: skip

    @inline
    def both(low: Vector, high: Vector, at: int, row: Any, total: Vector) -> Vector:
        first = to_float(low) * row[2][0]
        return fma(fma(to_float(high), row[2][1], first), load(F32x16, at + SCALE), total)

    @inline
    def add_halves(a: Any, b: Any, at: int, totals: Any) -> Any:
        seed, next_seed, next = low_seed(at), low_seed(at + size), at + size
        p, q, r, s = half(a[0], b[0], at, seed, seed, next_seed, next_seed)
        seed, next_seed = high_seed(at), high_seed(next)
        t, u, v, w = half(a[1], b[1], at + 256, seed, seed, next_seed, next_seed)
        return (
            both(p, t, at, a, totals[0]), both(q, u, at, b, totals[1]),
            both(r, v, next, a, totals[2]), both(s, w, next, b, totals[3]),
        )  # fmt: skip

    products = add_blocks if reader.scales == 1 else add_halves

    @inline
    def add(a: Any, b: Any, at: int, totals: Any) -> Any:
        p, q, r, s = products(a, b, at, totals)
        next = at + size
        return minima(a, at, p), minima(b, at, q), minima(a, next, r), minima(b, next, s)

    return add


@inline
def finish(sums: Vector) -> Vector:
    """Four rows' products, (0 + 1) + (2 + 3) of their blocks' sums: F32x4."""
    both = sums + _other_of_pair(sums)
    return low_half(low_half(both + _other_pair(both)))
