"""Rows of quantised weights times packed activations, from two rows of activations up to some tens.

Weights are read once: of ROWS rows each group of 128 columns is unpacked and stays in registers while all
tokens pass. Four rows are interleaved there: lane 4 * block + row of eight vectors holds the row's bytes 4c to
4c + 3 of a half of the block. So a dot product with a token's bytes (`interleaved_tokens`) adds up a block
in its lane: no sum crosses lanes, and a vector of sums has four for each row, one for each block of a group.
They are added up as `integer_rows` does, to the bit. Columns are taken so many at a time that the tokens stay
in the first cache. Knows what a `Reader` says; nothing of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import F32x4, F32x16, I8x64, Reader, U8x64
from graphml_cpu.kernels.products import interleaved_tokens
from graphml_cpu.kernels.products.integer_groups import (
    I32x16,
    doubles_high,
    doubles_low,
    make_operand,
    pairs_high,
    pairs_low,
)
from graphml_cpu.kernels.products.integer_panels import MINIMA, ROW_GROUP_BYTES, SCALES, make_put_unit
from graphml_cpu.kernels.products.interleaved_tokens import SCALE, SEEDS, make_interleave_token, token_bytes
from graphml_cpu.kernels.products.outputs import AHEAD, store_outputs
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    F32,
    WIDTH,
    bitcast,
    concatenate,
    fma,
    load,
    low_half,
    prefetch,
    shuffle_by,
    store,
    to_float,
    zero,
)

# Sets of four rows of weights in registers, and rows of weights that pass the tokens' columns together.
SETS = 2
ROWS = 4 * SETS
_ROWS_AT_ONCE = 64
_SUM_BYTES = 64

_by_block = shuffle_by([4 * row + block for block in range(4) for row in range(4)])
_other_of_pair = shuffle_by([lane ^ 4 for lane in range(16)])
_other_pair = shuffle_by([lane ^ 8 for lane in range(16)])


def _make_load_set(reader: Reader) -> Callable[..., Any]:
    """An inline function `load_set(at)`: four rows' group, UNIT_ROW_BYTES apart, as vectors of a set.

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

    @inline
    def numbers(at: int) -> Vector:
        left = concatenate(load(F32x4, at), load(F32x4, at + unit))
        right = concatenate(load(F32x4, at + 2 * unit), load(F32x4, at + 3 * unit))
        return _by_block(concatenate(left, right))

    def make_numbers(count: int, place: int) -> Callable[..., Any]:
        @inline
        def none(at: int) -> Any:
            return ()

        @inline
        def one(at: int) -> Any:
            return (numbers(at + place),)

        @inline
        def two(at: int) -> Any:
            return numbers(at + place), numbers(at + place + 16)

        return (none, one, two)[count]

    scales, minima = make_numbers(reader.scales, SCALES), make_numbers(reader.minima, MINIMA)
    _VALUES = I8x64 if make_operand(reader, for_panel=True).signed else U8x64

    @inline
    def load_set(at: int) -> Any:
        return four(at), four(at + 64), scales(at), minima(at)

    return load_set


def _make_add_tokens(reader: Reader) -> Callable[..., Any]:
    """An inline function `add(a, b, at, x, y, u, v) -> totals`: groups of two sets times those of two tokens.

    a, b: sets; the first token's group is at `at`, the second's behind it. Totals: of a and b with the first
    token, then with the second. The four dot products take turns, so that each may wait for its last term.
    """
    dot, seeds = make_operand(reader, for_panel=True).dot, interleaved_tokens.number_of_seeds(reader)
    sums_at, size = interleaved_tokens.minima_at(reader), token_bytes(reader)

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

    products = add_blocks if reader.scales == 1 else add_halves
    minima = (no_minima, one_minimum, two_minima)[reader.minima]

    @inline
    def add(a: Any, b: Any, at: int, totals: Any) -> Any:
        p, q, r, s = products(a, b, at, totals)
        next = at + size
        return minima(a, at, p), minima(b, at, q), minima(a, next, r), minima(b, next, s)

    return add


def _make_add_group(reader: Reader) -> Callable[..., Any]:
    """An inline function `add(buffer, at, tokens, sums)`: ROWS rows' group times that of all tokens.

    The rows' at `buffer`, the tokens' at `at`; `tokens` is even; sums: two vectors for each token.
    """
    load_set, add_tokens, size = _make_load_set(reader), _make_add_tokens(reader), token_bytes(reader)

    @inline
    def add(buffer: int, at: int, tokens: int, sums: int) -> None:
        rows, others = load_set(buffer), load_set(buffer + 4 * packed.UNIT_ROW_BYTES)
        for _ in range(0, tokens, 2):
            totals = (
                load(F32x16, sums), load(F32x16, sums + 64), load(F32x16, sums + 128), load(F32x16, sums + 192)
            )  # fmt: skip
            a, b, c, d = add_tokens(rows, others, at, totals)
            store(sums, a)
            store(sums + 64, b)
            store(sums + 128, c)
            store(sums + 192, d)
            at += 2 * size
            sums += 256

    return add


def _make_add_columns(reader: Reader) -> Callable[..., Any]:
    """An inline function `add(w, row_bytes, last, first, end, k, at, tokens, sums, buffer)`.

    Groups `first` to `end` of ROWS rows of weights from w on (those further than `last` bytes behind it are
    the row there) times those of all tokens, which begin at `at`.
    """
    put_unit, add_group = make_put_unit(reader), _make_add_group(reader)
    read, read_rest = reader.read, reader.read_rest
    unit_bytes, elements, block = reader.unit_bytes, reader.groups * packed.GROUP, reader.block_elements
    size, lines, groups, has_rest = token_bytes(reader), (unit_bytes + 32) // 64, reader.groups, read_rest is not None

    @inline
    def units(
        w: int, row_bytes: int, last: int, first: int, end: int, at: int, tokens: int, sums: int, buffer: int
    ) -> None:
        for unit in range(first // groups, end // groups):
            for row in range(ROWS):
                here = w + min(row * row_bytes, last) + unit * unit_bytes
                for line in range(lines):
                    prefetch(here + AHEAD + 64 * line)
                put_unit(buffer + row * packed.UNIT_ROW_BYTES, read(here))
            for group in range(groups):
                add_group(buffer + group * ROW_GROUP_BYTES, at, tokens, sums)
                at += tokens * size

    @inline
    def units_and_rest(
        w: int, row_bytes: int, last: int, first: int, end: int, k: int, at: int, tokens: int, sums: int,
        buffer: int,
    ) -> None:  # fmt: skip
        whole = k // elements
        units(w, row_bytes, last, first, min(end, whole), at, tokens, sums, buffer)
        if end > whole:
            for row in range(ROWS):
                here = w + min(row * row_bytes, last) + whole * unit_bytes
                put_unit(buffer + row * packed.UNIT_ROW_BYTES, read_rest(here, (k - whole * elements) // block))
            add_group(buffer, at + (whole - first) * tokens * size, tokens, sums)

    @inline
    def only_units(
        w: int, row_bytes: int, last: int, first: int, end: int, k: int, at: int, tokens: int, sums: int,
        buffer: int,
    ) -> None:  # fmt: skip
        units(w, row_bytes, last, first, end, at, tokens, sums, buffer)

    return units_and_rest if has_rest else only_units


@inline
def _finish(sums: Vector) -> Vector:
    """Four rows' products, (0 + 1) + (2 + 3) of their blocks' sums: F32x4."""
    both = sums + _other_of_pair(sums)
    return low_half(low_half(both + _other_pair(both)))


def make_interleaved_products(
    reader: Reader, address_of: Callable[..., Any], offset_of: Callable[..., Any]
) -> Callable[..., Any]:
    """An inline function `products(begin, end, w, y, residual, bias, k, ..., scratch)`.

    Weight rows begin to end of w, `row_bytes` apart, times `tokens` rows: token t's at
    `address_of(x, x_stride, t)`, its results to the row of y, and on top of the row of the residual, at byte
    `offset_of(x, x_stride, y_stride, t)`. scratch: `packed.interleaved_scratch_bytes`.
    """
    interleave, add_columns, size = make_interleave_token(reader), _make_add_columns(reader), token_bytes(reader)

    @inline
    def products(
        begin: int, end: int, w: int, y: int, residual: int, bias: int, k: int, row_bytes: int, x: int,
        x_stride: int, y_stride: int, tokens: int, scratch: int,
    ) -> None:  # fmt: skip
        groups = (k + packed.GROUP - 1) // packed.GROUP
        results = scratch + ROWS * packed.UNIT_ROW_BYTES
        all_sums = results + (tokens + 1) * _ROWS_AT_ONCE * 4
        at = all_sums + (tokens + 1) * _ROWS_AT_ONCE * 16
        wanted = tokens
        tokens = (wanted + 1) // 2 * 2
        for token in range(tokens):
            # Past the last token it is multiplied again, and not stored.
            address = address_of(x, x_stride, min(token, wanted - 1))
            interleave(address, groups, at + token * size, tokens * size)
        # Two groups are the unit of some formats.
        at_once = max(packed.INTERLEAVED_CACHE // (tokens * size), 2) // 2 * 2
        for top in range(begin, end, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, end - top)
            for i in range((count + ROWS - 1) // ROWS * SETS * tokens):
                store(all_sums + i * _SUM_BYTES, zero(F32x16))
            for first in range(0, groups, at_once):
                stop, sums = min(first + at_once, groups), all_sums
                for index in range(top, top + count, ROWS):
                    # Past the last row of weights the last one is multiplied again, and not stored.
                    last = (end - 1 - index) * row_bytes
                    columns = at + first * tokens * size
                    row = w + index * row_bytes
                    add_columns(row, row_bytes, last, first, stop, k, columns, tokens, sums, scratch)
                    sums += tokens * SETS * _SUM_BYTES
            sums = all_sums
            for index in range(0, count, ROWS):
                for token in range(tokens):
                    for part in range(SETS):
                        found = _finish(load(F32x16, sums))
                        store(results + (token * _ROWS_AT_ONCE + index + 4 * part) * 4, found)
                        sums += _SUM_BYTES
            for token in range(wanted):
                offset = offset_of(x, x_stride, y_stride, token)
                for lane in range(0, count, WIDTH):
                    values = load(F32, results + (token * _ROWS_AT_ONCE + lane) * 4)
                    store_outputs(values, count - lane, y, residual, bias, top + lane, offset)

    return products
