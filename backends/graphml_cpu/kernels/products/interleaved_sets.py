"""Four rows of quantised weights interleaved in registers, and their products with tokens.

Lane 4 * row + block of eight vectors holds the row's bytes 4c to 4c + 3 of a half of the block; scales and
minima are in the same lanes. Where a format can they are interleaved before they are unpacked. So a dot
product with a token's bytes (`interleaved_tokens`), the same in every quarter, adds up a block in its lane:
no sum crosses lanes, and a vector of sums has four for each row, one for each block of a group.
They are added up as `integer_rows` does, to the bit. Knows what a `CpuFormatReader` says, and how a unit is
put down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, F32x4, F32x16, I8x64, U8x64
from graphml_cpu.kernels.products import interleaved_tokens
from graphml_cpu.kernels.products.integer_groups import I32x16, make_operand
from graphml_cpu.kernels.products.integer_panels import ROW_GROUP_BYTES
from graphml_cpu.kernels.products.interleaved_tokens import SCALE, SEEDS, token_bytes
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, fma, load, shuffle_by, shuffle_pair_by, store, to_float, vector, zero

# Where a row's group has the vector of the four rows: the first two rows' have scales, the others' minima.
_SCALES = 128
_I32x4 = vector("i32", 4)
_MINIMA = _SCALES + 2 * packed.UNIT_ROW_BYTES
_in_all_quarters = shuffle_by([lane % 4 for lane in range(16)])
# Of two rows, words c and c + 1 of all blocks: a row's, the other's, then the next word's.
_early_words, _late_words = (
    shuffle_pair_by([16 * row + 4 * block + word for word in words for row in range(2) for block in range(4)])
    for words in ((0, 1), (2, 3))
)
_low_halves, _high_halves = (
    shuffle_pair_by([16 * pair + first + lane for pair in range(2) for lane in range(8)]) for first in (0, 8)
)


def reads_words(reader: CpuFormatReader) -> bool:
    """Whether a set is read from the weights as it is multiplied, not unpacked into a buffer before."""
    return reader.read_words is not None and target.current().vector_bytes == 64


def make_put_set(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function `put(to, found)`: what `make_read_rows` reads of four rows, to `to`.

    A row takes UNIT_ROW_BYTES, and each group of it ROW_GROUP_BYTES: its values, unless a set `reads_words`,
    and one vector of those that the four rows share.
    """
    prepare, unit = make_operand(reader).prepare, packed.UNIT_ROW_BYTES
    groups, with_values = reader.groups, not reads_words(reader)

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
            store(to, numbers[kind][0])

        @inline
        def two(to: int, numbers: Any) -> None:
            store(to, numbers[kind][0])
            store(to + unit, numbers[kind][1])

        return (none, one, two)[count]

    put_scales, put_minima = make_put_numbers(0, reader.scales), make_put_numbers(1, reader.minima)

    def make_put_group(index: int) -> Callable[..., Any]:
        @inline
        def put_group(to: int, found: Any) -> None:
            units, numbers = found
            if with_values:
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


def make_load_set(reader: CpuFormatReader, rest: bool = False) -> Callable[..., Any]:
    """An inline function `load_set(at, ws, group)`: four rows' group, as vectors of a set.

    Eight vectors of values; scales, one or two; minima, none, one or two. at: where `make_put_set` left it.
    ws: the units of the rows, group: which of their groups; with `rest` how many blocks a row has left.
    """
    unit, prepare = packed.UNIT_ROW_BYTES, make_operand(reader).prepare
    words = reader.read_rest_words if rest else reader.read_words

    @inline
    def four(at: int) -> Any:
        a, b = load(I32x16, at), load(I32x16, at + unit)
        c, d = load(I32x16, at + 2 * unit), load(I32x16, at + 3 * unit)
        early, later = _early_words(a, b), _early_words(c, d)
        late, latest = _late_words(a, b), _late_words(c, d)
        return (
            bitcast(_VALUES, _low_halves(early, later)),
            bitcast(_VALUES, _high_halves(early, later)),
            bitcast(_VALUES, _low_halves(late, latest)),
            bitcast(_VALUES, _high_halves(late, latest)),
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
    _VALUES = I8x64 if make_operand(reader).signed else U8x64

    @inline
    def from_buffer(at: int, ws: Any, group: int) -> Any:
        return four(at), four(at + 64), scales(at), minima(at)

    @inline
    def from_weights(at: int, ws: Any, group: int) -> Any:
        (a, b, c, d), (e, f, g, h) = words(ws[0], ws[1], ws[2], ws[3], group)
        low = prepare(a), prepare(b), prepare(c), prepare(d)
        return low, (prepare(e), prepare(f), prepare(g), prepare(h)), scales(at), minima(at)

    return from_weights if reads_words(reader) else from_buffer


@inline
def _bytes(at: int) -> Vector:
    """16 bytes of a token, in every quarter: I8x64."""
    return bitcast(I8x64, _in_all_quarters(load(_I32x4, at)))


@inline
def _integers(at: int) -> Vector:
    """A token's integer for each block, in every quarter."""
    return _in_all_quarters(load(_I32x4, at))


@inline
def _floats(at: int) -> Vector:
    """A token's number for each block, in every quarter."""
    return _in_all_quarters(load(F32x4, at))


def _make_add_minima(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function `add(row, at, total) -> total`: a set's minima times a token's sums."""
    sums_at = interleaved_tokens.minima_at(reader)

    @inline
    def no_minima(row: Any, at: int, total: Vector) -> Vector:
        return total

    @inline
    def one_minimum(row: Any, at: int, total: Vector) -> Vector:
        return fma(row[3][0], _floats(at + sums_at), total)

    @inline
    def two_minima(row: Any, at: int, total: Vector) -> Vector:
        total = fma(row[3][0], _floats(at + sums_at), total)
        return fma(row[3][1], _floats(at + sums_at + 16), total)

    return (no_minima, one_minimum, two_minima)[reader.minima]


def _make_seeds(reader: CpuFormatReader) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions `seed(at)`: what sums of a token's group begin with, of blocks or halves."""
    seeds = interleaved_tokens.number_of_seeds(reader)

    def make_seed(place: int) -> Callable[..., Any]:
        @inline
        def nothing(at: int) -> Vector:
            return zero(I32x16)

        @inline
        def seed(at: int) -> Vector:
            return _integers(at + place)

        return seed if seeds else nothing

    return make_seed(SEEDS), make_seed(SEEDS + 16)


def _make_half(reader: CpuFormatReader) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions: a half of two sets times that of the token at `at`, and of the next one, too."""
    dot, size = make_operand(reader).dot, token_bytes(reader)

    @inline
    def half(a: Any, b: Any, at: int, p: Vector, q: Vector) -> tuple[Vector, Vector]:
        x = _bytes(at)
        p, q = dot(p, a[0], x), dot(q, b[0], x)
        x = _bytes(at + 16)
        p, q = dot(p, a[1], x), dot(q, b[1], x)
        x = _bytes(at + 32)
        p, q = dot(p, a[2], x), dot(q, b[2], x)
        x = _bytes(at + 48)
        return dot(p, a[3], x), dot(q, b[3], x)

    @inline
    def half_of_two(a: Any, b: Any, at: int, p: Vector, q: Vector, r: Vector, s: Vector) -> Any:
        x, y = _bytes(at), _bytes(at + size)
        p, q, r, s = dot(p, a[0], x), dot(q, b[0], x), dot(r, a[0], y), dot(s, b[0], y)
        x, y = _bytes(at + 16), _bytes(at + size + 16)
        p, q, r, s = dot(p, a[1], x), dot(q, b[1], x), dot(r, a[1], y), dot(s, b[1], y)
        x, y = _bytes(at + 32), _bytes(at + size + 32)
        p, q, r, s = dot(p, a[2], x), dot(q, b[2], x), dot(r, a[2], y), dot(s, b[2], y)
        x, y = _bytes(at + 48), _bytes(at + size + 48)
        return dot(p, a[3], x), dot(q, b[3], x), dot(r, a[3], y), dot(s, b[3], y)

    return half, half_of_two


def make_add_tokens(reader: CpuFormatReader) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions `add(a, b, at, totals) -> totals`: two sets times two tokens, and times one.

    a, b: sets; the first token's group is at `at`, the second's behind it. Totals: of a and b with the first
    token, then with the second. The dot products take turns, so that each may wait for its last term.
    """
    (low_seed, high_seed), (half, half_of_two) = _make_seeds(reader), _make_half(reader)
    size, minima = token_bytes(reader), _make_add_minima(reader)

    @inline
    def scaled(whole: Vector, at: int, row: Any, total: Vector) -> Vector:
        return fma(to_float(whole) * _floats(at + SCALE), row[2][0], total)

    @inline
    def blocks_of_one(a: Any, b: Any, at: int, totals: Any) -> Any:
        # The halves apart are four sums in turns; integers are added exactly.
        p, q = half(a[0], b[0], at, low_seed(at), low_seed(at))
        r, s = half(a[1], b[1], at + 64, zero(I32x16), zero(I32x16))
        return scaled(p + r, at, a, totals[0]), scaled(q + s, at, b, totals[1])

    @inline
    def blocks_of_two(a: Any, b: Any, at: int, totals: Any) -> Any:
        seed, next_seed, next = low_seed(at), low_seed(at + size), at + size
        p, q, r, s = half_of_two(a[0], b[0], at, seed, seed, next_seed, next_seed)
        p, q, r, s = half_of_two(a[1], b[1], at + 64, p, q, r, s)
        return (
            scaled(p, at, a, totals[0]), scaled(q, at, b, totals[1]),
            scaled(r, next, a, totals[2]), scaled(s, next, b, totals[3]),
        )  # fmt: skip

    @inline
    def both(low: Vector, high: Vector, at: int, row: Any, total: Vector) -> Vector:
        first = to_float(low) * row[2][0]
        return fma(fma(to_float(high), row[2][1], first), _floats(at + SCALE), total)

    @inline
    def halves_of_one(a: Any, b: Any, at: int, totals: Any) -> Any:
        p, q = half(a[0], b[0], at, low_seed(at), low_seed(at))
        r, s = half(a[1], b[1], at + 64, high_seed(at), high_seed(at))
        return both(p, r, at, a, totals[0]), both(q, s, at, b, totals[1])

    @inline
    def halves_of_two(a: Any, b: Any, at: int, totals: Any) -> Any:
        seed, next_seed, next = low_seed(at), low_seed(at + size), at + size
        p, q, r, s = half_of_two(a[0], b[0], at, seed, seed, next_seed, next_seed)
        seed, next_seed = high_seed(at), high_seed(next)
        t, u, v, w = half_of_two(a[1], b[1], at + 64, seed, seed, next_seed, next_seed)
        return (
            both(p, t, at, a, totals[0]), both(q, u, at, b, totals[1]),
            both(r, v, next, a, totals[2]), both(s, w, next, b, totals[3]),
        )  # fmt: skip

    one, two = (blocks_of_one, blocks_of_two) if reader.scales == 1 else (halves_of_one, halves_of_two)

    @inline
    def add_one(a: Any, b: Any, at: int, totals: Any) -> Any:
        p, q = one(a, b, at, totals)
        return minima(a, at, p), minima(b, at, q)

    @inline
    def add_two(a: Any, b: Any, at: int, totals: Any) -> Any:
        p, q, r, s = two(a, b, at, totals)
        next = at + size
        return minima(a, at, p), minima(b, at, q), minima(a, next, r), minima(b, next, s)

    return add_two, add_one
