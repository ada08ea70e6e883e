"""Readers of formats of blocks of 32 weights: four neighbouring blocks, a row's rest, four rows' numbers.

Where bytes can be permuted across two registers a part of all four blocks is collected from one or two
loads. Knows how large blocks are and whether they begin with halves; knows no format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, F32x4, F32x16, U8x64
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    concatenate,
    convert,
    gather_f16,
    load,
    load_partial,
    shuffle_by,
    shuffle_pair_by,
    vector,
)

_F16x4, _F16x16 = vector("f16", 4), vector("f16", 16)


def make_collect(block_bytes: int, offset: int, count: int, rest: bool = False, by_word: bool = False) -> Any:
    """An inline function `collect(at, size)`: `count` bytes at `offset` of each of four neighbouring blocks.

    Gives 4 * count bytes, block by block; `by_word`: the first four bytes of all blocks, then the next.
    Where bytes can be permuted across two registers, they come from one or two loads that stay within the
    four blocks; with `rest` within `size` bytes, behind which there are zeros.
    """
    unit, end = 4 * block_bytes, 3 * block_bytes + offset + count
    kind = vector("u8", count)
    places = [block * block_bytes + offset + byte for block in range(4) for byte in range(count)]
    if by_word:
        places = [
            places[count * block + 4 * word + i]
            for word in range(count // 4)
            for block in range(4)
            for i in range(4)
        ]
    # Loads at the same two places are one for all parts of the blocks.
    first, second = (0, unit - 64) if unit <= 128 else (offset, end - 64)
    one, both = end - first <= 64, second + 64 >= end and second <= first + 64
    load_bytes = _make_load_bytes(rest)

    @inline
    def by_blocks(at: int, size: int) -> Vector:
        low = concatenate(load(kind, at + offset), load(kind, at + block_bytes + offset))
        at += 2 * block_bytes
        return concatenate(low, concatenate(load(kind, at + offset), load(kind, at + block_bytes + offset)))

    if not target.current().has_byte_permutation or unit < 64 or not (one or both):
        assert not rest
        assert not by_word
        return by_blocks
    if one:
        from_one = shuffle_by([place - first for place in places])

        @inline
        def by_one_load(at: int, size: int) -> Vector:
            return from_one(load_bytes(at, first, size))

        return by_one_load
    from_two = shuffle_pair_by([p - first if p < first + 64 else 64 + p - second for p in places])

    @inline
    def by_two_loads(at: int, size: int) -> Vector:
        return from_two(load_bytes(at, first, size), load_bytes(at, second, size))

    return by_two_loads


def _make_load_bytes(rest: bool) -> Any:
    """An inline function: the 64 bytes at `at + offset`; with `rest` zeros from `at + size` on."""

    @inline
    def all_bytes(at: int, offset: int, size: int) -> Vector:
        return load(U8x64, at + offset)

    @inline
    def first_bytes(at: int, offset: int, size: int) -> Vector:
        return load_partial(U8x64, at + offset, max(size - offset, 0))

    return first_bytes if rest else all_bytes


def make_collect_halves(block_bytes: int, offset: int, rest: bool = False) -> Any:
    """An inline function `(at, size)`: the IEEE half at `offset` of four neighbouring blocks, F32x4."""
    collect = make_collect(block_bytes, offset, 2, rest)

    @inline
    def by_permutation(at: int, size: int) -> Vector:
        return convert(F32x4, bitcast(_F16x4, collect(at, size)))

    @inline
    def one_by_one(at: int, size: int) -> Vector:
        return gather_f16(at + offset, (0, block_bytes, 2 * block_bytes, 3 * block_bytes))

    return by_permutation if target.current().has_byte_permutation else one_by_one


def _make_numbers(block_bytes: int, minima: bool, rest: bool) -> Any:
    """An inline function `numbers(a, b, c, d, size)`: see `CpuFormatReader.read_numbers`.

    Blocks begin with their scale, an IEEE half, and with `minima` with their minimum after it.
    """
    parts = 2 if minima else 1
    load_bytes = _make_load_bytes(rest)
    from_one_load = 3 * block_bytes + 2 * parts <= 64
    stride, row_bytes = (block_bytes, 64) if from_one_load else (2 * parts, 8 * parts)
    pair = shuffle_pair_by(
        [
            row * row_bytes + block * stride + 2 * part + byte
            for part in range(parts)
            for row in range(2)
            for block in range(4)
            for byte in range(2)
        ]
    )
    collect = None if from_one_load else make_collect(block_bytes, 0, 2 * parts, rest)

    @inline
    def by_one_load(at: int, size: int) -> Vector:
        return load_bytes(at, 0, size)

    heads = by_one_load if collect is None else collect

    def make_part(part: int) -> Any:
        first = 16 * part
        count = 16 * parts
        both = shuffle_pair_by([*range(first, first + 16), *range(count + first, count + first + 16)])

        @inline
        def floats_of(left: Vector, right: Vector) -> Vector:
            return convert(F32x16, bitcast(_F16x16, both(left, right)))

        return floats_of

    scales_of, minima_of = make_part(0), make_part(parts - 1)

    @inline
    def halves(a: int, b: int, c: int, d: int, size: int) -> tuple[Vector, Vector]:
        return pair(heads(a, size), heads(b, size)), pair(heads(c, size), heads(d, size))

    @inline
    def with_minima(a: int, b: int, c: int, d: int, size: int) -> Any:
        left, right = halves(a, b, c, d, size)
        return (((scales_of(left, right),), (minima_of(left, right),)),)

    @inline
    def without(a: int, b: int, c: int, d: int, size: int) -> Any:
        left, right = halves(a, b, c, d, size)
        return (((scales_of(left, right),), ()),)

    return with_minima if minima else without


def block_reader(
    block_bytes: int,
    make_read: Callable[..., Any],
    read_blocks: Any,
    halves: int = 0,
    make_words: Any = None,
    **more: Any,
) -> CpuFormatReader:
    """The `CpuFormatReader` of a format of blocks of 32 weights, four blocks a unit.

    `make_read(rest)` gives `read(at, size)` for neighbouring blocks of `size` bytes (see `make_collect`),
    `read_blocks(a, b, c, d)` reads blocks at any addresses. Blocks begin with `halves` IEEE halves: nothing
    that four rows share, a scale, or a scale and a minimum. `make_words(rest)` gives `words(a, b, c, d,
    size)`, blocks of `size` bytes of four rows as `CpuFormatReader.read_words` wants them. more: other fields
    of the `CpuFormatReader`.
    """
    permutes = target.current().has_byte_permutation
    whole, part = make_read(False), make_read(permutes)
    unit = 4 * block_bytes

    @inline
    def read(at: int) -> Any:
        return whole(at, unit)

    @inline
    def rest(at: int, blocks: int) -> Any:
        return part(at, blocks * block_bytes)

    @inline
    def rest_by_blocks(at: int, blocks: int) -> Any:
        # Of a row's last 1 to 3 blocks the last stands in the place of those that are missing.
        second = at + min(1, blocks - 1) * block_bytes
        third = at + min(2, blocks - 1) * block_bytes
        return read_blocks(at, second, third, third)

    if halves and permutes:
        numbers, last = (_make_numbers(block_bytes, halves == 2, rest) for rest in (False, True))

        @inline
        def read_numbers(a: int, b: int, c: int, d: int) -> Any:
            return numbers(a, b, c, d, unit)

        @inline
        def read_rest_numbers(a: int, b: int, c: int, d: int, blocks: int) -> Any:
            return last(a, b, c, d, blocks * block_bytes)

        more = {**more, "read_numbers": read_numbers, "read_rest_numbers": read_rest_numbers}
    if make_words and permutes:
        words, last_words = make_words(False), make_words(True)

        @inline
        def read_words(a: int, b: int, c: int, d: int, group: int) -> Any:
            return words(a, b, c, d, unit)

        @inline
        def read_rest_words(a: int, b: int, c: int, d: int, blocks: int) -> Any:
            return last_words(a, b, c, d, blocks * block_bytes)

        more = {**more, "read_words": read_words, "read_rest_words": read_rest_words}
    read_rest = rest if permutes else rest_by_blocks
    return CpuFormatReader(unit, block_bytes, 32, read, read_rest, minima=halves // 2, **more)
