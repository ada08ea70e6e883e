"""Blocks of 256 in groups of signed codebook vectors: what the formats IQ2 and IQ3 share.

Of several scales of a group that of the least weighted squares for the vectors that are nearest then, in
ggml's order of sums. Formats pack the bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import IS_NEIGHBOUR, Codebook, index_of, is_neighbour
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    I32,
    LANES,
    U8,
    as_bytes,
    better_scale,
    importance,
    largest_value,
    odd_level,
    sum_of_squares,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    absolute,
    convert,
    f32,
    load,
    maximum,
    select,
    splat,
    square_root,
    store,
    zero,
)


class Groups(NamedTuple):
    """How a format's groups are searched.

    tries, step: the tried scales make the group's largest magnitude one of the numbers t + step * i, where t
    is the codebook's largest and i is from -tries to tries. smallest: groups below it are zeros. even: of a
    vector's 8 signs an even number is negative. again: at the group's scale all vectors are chosen anew, else
    those that were neighbours. A weight by importance w is w * sqrt(m + x^2), where m is mean_factor times
    the mean of the block's squares; without importance it is mean_part * m + x^2. start: an inline function
    start(x, weights, scratch) -> the scale around which others are tried, not the largest magnitude's; groups
    are zeros where it is not positive.
    """

    size: int
    tries: int
    step: float
    smallest: float
    even: bool
    again: bool = False
    mean_factor: float = 2.0
    mean_part: float = 0.0
    start: Any = None


class SignedVectors(NamedTuple):
    """search(x, weights, scratch) -> the block's scale; then in scratch, at the places named here:

    scale_levels   a byte from 0 to 15 for each group
    signs          32 bytes: bit i of byte k is set where element 8 k + i is negative
    entries        I32, the codebook's entry of each vector

    Groups of zeros have zeros in all of them.
    """

    search: Any
    scale_levels: int
    signs: int
    entries: int


class _Places(NamedTuple):
    """In scratch: a scale, weights, their roots, magnitudes, entries of a group; of the block the rest."""

    scale: int
    weights: int
    roots: int
    x: int
    tried: int
    scales: int
    entries: int
    signs: int
    scale_levels: int
    start: int


def _places(size: int, length: int) -> _Places:
    sizes = [F32_BYTES] + 3 * [size * F32_BYTES] + [size // length * F32_BYTES, 256 // size * F32_BYTES]
    sizes += [256 // length * F32_BYTES, 32 * LANES, 256 // size * LANES, 0]
    return _Places(*(sum(sizes[:place]) for place in range(len(sizes))))


@inline
def _store_magnitudes(x: int, to: int, signs: int) -> Vector:
    """Of 8 numbers, and the byte of their signs; returns its bits."""
    bits = zero(I32)
    for i in range(8):
        value = load(F32, x + i * F32_BYTES)
        bits |= select(value < 0.0, splat(I32, 1), zero(I32)) << i
        store(to + i * F32_BYTES, absolute(value))
    store(signs, convert(U8, bits))
    return bits


@inline
def _even_signs(bits: Vector, weights: int, x: int, signs: int) -> None:
    """One more sign, that of the least weighted square, is changed where an odd number is negative.

    That "magnitude" is negative then.
    """
    least, place, count = splat(F32, 0.0), zero(I32), bits
    for i in range(8):
        value = load(F32, x + i * F32_BYTES)
        square = load(F32, weights + i * F32_BYTES) * value * value
        if i == 0:
            least = square
        place, least = select(square < least, splat(I32, i), place), select(square < least, square, least)
    for step in range(3):
        count ^= count >> (4 >> step)
    is_odd = (count & 1) == splat(I32, 1)
    for i in range(8):
        is_flipped = is_odd & (place == splat(I32, i))
        value = load(F32, x + i * F32_BYTES)
        store(x + i * F32_BYTES, select(is_flipped, -value, value))
        bits ^= select(is_flipped, splat(I32, 1), zero(I32)) << i
    store(signs, convert(U8, bits))


def _make_weights(groups: Groups, weighted: bool, at: _Places) -> Any:
    """An inline function store_weights(x, weights, mean, scratch) of a group."""
    size, mean_part = groups.size, groups.mean_part
    weights_at, roots_at = at.weights, at.roots

    @inline
    def store_weights(x: int, weights: int, mean: Vector, scratch: int) -> None:
        if weighted:
            importance(x, weights, mean, size, scratch + weights_at)
        else:
            for i in range(size):
                value = load(F32, x + i * F32_BYTES)
                store(scratch + weights_at + i * F32_BYTES, mean * f32(mean_part) + value * value)
        for i in range(size):
            weight = load(F32, scratch + weights_at + i * F32_BYTES)
            store(scratch + roots_at + i * F32_BYTES, square_root(weight))

    return store_weights


def _make_choice(book: Codebook, size: int, at: _Places) -> Any:
    """Inline functions of a group: its vectors' entries at a scale; sums of entries."""
    length, levels, nearest, number = book
    vectors, vector_bytes = size // length, length * F32_BYTES
    scale_at, weights_at, roots_at, x_at = at.scale, at.weights, at.roots, at.x

    @inline
    def choose(inverse: Vector, scale: Vector, scratch: int, to: int) -> None:
        none = zero(F32)
        store(scratch + scale_at, scale)
        for vector in range(vectors):
            first, key = scratch + vector * vector_bytes, none
            for i in range(length):
                value = load(F32, first + x_at + (length - 1 - i) * F32_BYTES)
                key = key * float(levels) + odd_level(inverse * value, float(levels - 1))
            scales, entry = scratch + scale_at, to + vector * F32_BYTES
            nearest(convert(I32, key), first + x_at, first + roots_at, scales, scales, entry)

    @inline
    def sums(entries: int, scratch: int) -> tuple[Vector, Vector]:
        sum_lx, sum_l2, none = zero(F32), zero(F32), zero(F32)
        for vector in range(vectors):
            entry, first = load(I32, entries + vector * F32_BYTES), scratch + vector * vector_bytes
            for i in range(length):
                meant = number(entry, i, none)
                weight = load(F32, first + weights_at + i * F32_BYTES)
                sum_lx += weight * load(F32, first + x_at + i * F32_BYTES) * meant
                sum_l2 += weight * meant * meant
        return sum_lx, sum_l2

    return choose, sums


def _make_range(groups: Groups, levels: int, at: _Places) -> Any:
    """An inline function: the largest magnitude that scales are tried for, and where a group is zeros."""
    size, smallest, start, has_start = groups.size, groups.smallest, groups.start, groups.start is not None
    x_at, weights_at, start_at = at.x, at.weights, at.start

    @inline
    def range_of(scratch: int) -> tuple[Vector, Vector]:
        most = largest_value(scratch + x_at, size)
        is_zero = (most < f32(smallest)) | (most == 0.0)
        if has_start:
            most = start(scratch + x_at, scratch + weights_at, scratch + start_at) * float(levels)
            is_zero |= most <= 0.0
        return select(is_zero, splat(F32, 1.0), most), is_zero

    return range_of


def _make_group_search(book: Codebook, groups: Groups, at: _Places) -> Any:
    """An inline function search(scratch, entries) -> scale, negative to change all signs; where zeros are."""
    choose, sums = _make_choice(book, groups.size, at)
    range_of = _make_range(groups, book.levels, at)
    tries, step, again, has_start = groups.tries, groups.step, groups.again, groups.start is not None
    top, end, tried_at = 2 * book.levels - 1, groups.size // book.length * F32_BYTES, at.tried
    first_top = book.levels if has_start else top

    @inline
    def search(scratch: int, entries: int) -> tuple[Vector, Vector]:
        tried_entries = scratch + tried_at
        most, is_zero = range_of(scratch)
        scale, best, flags = most / float(first_top), zero(F32), zero(I32)
        for vector in range(0, end, F32_BYTES):
            store(entries + vector, splat(I32, IS_NEIGHBOUR if again else 0))
        for tried in range(-tries, tries + 1):
            inverse = splat(F32, f32(tried) * f32(step) + f32(top)) / most
            choose(inverse, 1.0 / inverse, scratch, tried_entries)
            sum_lx, sum_l2 = sums(tried_entries, scratch)
            is_better, scale, best = better_scale(sum_lx, sum_l2, scale, best)
            for vector in range(0, end, F32_BYTES):
                entry = select(is_better, load(I32, tried_entries + vector), load(I32, entries + vector))
                store(entries + vector, entry)
        for vector in range(0, end, F32_BYTES):
            flags |= load(I32, entries + vector)
        is_final = (scale > 0.0) if has_start else is_neighbour(flags) & (scale > 0.0)
        choose(1.0 / scale, scale, scratch, tried_entries)
        for vector in range(0, end, F32_BYTES):
            entry = load(I32, entries + vector)
            is_replaced = is_final if again else is_final & is_neighbour(entry)
            store(entries + vector, select(is_replaced, load(I32, tried_entries + vector), entry))
        sum_lx, sum_l2 = sums(entries, scratch)
        for vector in range(0, end, F32_BYTES):
            store(entries + vector, select(is_zero, zero(I32), load(I32, entries + vector)))
        scale = select(is_final & (sum_l2 > 0.0), sum_lx / sum_l2, scale)
        return select(is_zero, zero(F32), scale), is_zero

    return search


def make_signed_vectors(book: Codebook, groups: Groups, weighted: bool) -> SignedVectors:
    """See the classes."""
    at = _places(groups.size, book.length)
    store_weights, group_search = _make_weights(groups, weighted, at), _make_group_search(book, groups, at)
    size, even, mean_factor = groups.size, groups.even, groups.mean_factor
    count, bytes_of_signs, vectors = 256 // groups.size, groups.size // 8, groups.size // book.length
    weights_at, x_at, scales_at, entries_at = at.weights, at.x, at.scales, at.entries
    signs_at, levels_at = at.signs, at.scale_levels

    @inline
    def store_signs(scale: Vector, is_zero: Vector, signs: int) -> None:
        """All changed where a scale is negative, none in groups of zeros."""
        for part in range(bytes_of_signs):
            bits = convert(I32, load(U8, signs + part * LANES))
            bits = select(scale < 0.0, bits ^ 255, bits)
            store(signs + part * LANES, convert(U8, select(is_zero, zero(I32), bits)))

    @inline
    def search(x: int, weights: int, scratch: int) -> Vector:
        mean, most = sum_of_squares(x, 256) * mean_factor / 256.0, zero(F32)
        for group in range(count):
            values = x + group * size * F32_BYTES
            store_weights(values, weights + group * size * F32_BYTES, mean, scratch)
            signs = scratch + signs_at + group * bytes_of_signs * LANES
            for part in range(bytes_of_signs):
                first, byte = part * 8 * F32_BYTES, signs + part * LANES
                bits = _store_magnitudes(values + first, scratch + x_at + first, byte)
                if even:
                    _even_signs(bits, scratch + weights_at + first, scratch + x_at + first, byte)
            scale, is_zero = group_search(scratch, scratch + entries_at + group * vectors * F32_BYTES)
            store_signs(scale, is_zero, signs)
            store(scratch + scales_at + group * F32_BYTES, absolute(scale))
            most = maximum(absolute(scale), most)
        block_scale = most / 31.0
        inverse = 1.0 / select(most == 0.0, splat(F32, 1.0), block_scale)
        for group in range(count):
            own = load(F32, scratch + scales_at + group * F32_BYTES)
            store(scratch + levels_at + group * LANES, as_bytes(odd_level(inverse * own, 15.0)))
        return block_scale

    return SignedVectors(search, levels_at, signs_at, entries_at)


@inline
def store_indices(entries: int, bits: int, low: int, high: int) -> None:
    """The lowest byte of each of a block's 64 / bits indices, and 8 bytes of the `bits` above it."""
    for byte in range(8):
        upper = zero(I32)
        for i in range(8 // bits):
            place = byte * (8 // bits) + i
            index = index_of(load(I32, entries + place * F32_BYTES))
            store(low + place * LANES, convert(U8, index))
            upper |= (index >> 8) << (bits * i)
        store(high + byte * LANES, convert(U8, upper))


@inline
def store_signs(signs: int, out: int) -> None:
    """32 bytes, as they are."""
    for i in range(32):
        store(out + i * LANES, load(U8, signs + i * LANES))


@inline
def word_of_signs(signs: int, scale_level: Vector) -> Vector:
    """The word of a group of 32: 7 bits of each byte of signs, and the level of its scale."""
    word = convert(I32, scale_level) << 28
    for i in range(4):
        word |= (convert(I32, load(U8, signs + i * LANES)) & 127) << (7 * i)
    return word
