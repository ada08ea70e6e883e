"""Blocks of 256 in groups of ternary codebook vectors: what IQ1_S and IQ1_M share.

A group's numbers are sorted; levels -1, 0 and 1 are runs of them, and all pairs of bounds between the runs
are tried by the format. Then each vector is the codebook's nearest (`_codebook`), and the scale that of the
least squares. All in ggml's order of sums.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from graphml_quant.codebooks import iq1_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import Codebook, is_neighbour, make_codebook
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, I32, largest_magnitude, store_weights
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, f32, load, maximum, select, splat, store, zero

SHIFT = 0.125
NOTHING_TRIED = -3.4028234663852886e38


class SignedSplit(NamedTuple):
    """Where a format finds a group's sorted numbers, `size` vectors each, in scratch; and what it may use.

    A format's `split(scratch)` returns F32 scale, first, second, shifts of the group's halves, and `best` of
    `better_scale`, `NOTHING_TRIED` where there is no scale. Levels are -1 below the bound `first`, 0 below
    `second`, else 1; plus the shift.
    """

    values: int
    weights: int
    places: int
    free: int


class Ternary(NamedTuple):
    """search(x, weights, mean, scratch) -> the largest of the groups' scales, none of which is negative.

    Then in scratch, at the places named here, are the groups' scales, and of each vector the entry and the
    shift. mean: that of the block's squares, by which importance weighs, doubled.
    number(entry, i, shift): see `_codebook`.
    """

    search: Any
    number: Any
    scales: int
    entries: int
    shifts: int


def split_places(size: int) -> SignedSplit:
    """Behind a group's weights, its scale, and what is kept of the block."""
    first = size + 1 + 256 // size + 64
    return SignedSplit(*((first + part * size) * F32_BYTES for part in range(4)))


def _make_sort(size: int) -> Any:
    """An inline function sort(x, scratch): a group's values, weights and places by value, then by place."""
    stages, at = size.bit_length(), split_places(size)
    values_at, weights_at, places_at = at.values, at.weights, at.places

    @inline
    def exchange(low: int, high: int) -> None:
        """The lower one to `low`."""
        a, b = load(F32, low + values_at), load(F32, high + values_at)
        place_a, place_b = load(F32, low + places_at), load(F32, high + places_at)
        weight_a, weight_b = load(F32, low + weights_at), load(F32, high + weights_at)
        is_after = (a > b) | ((a == b) & (place_a > place_b))
        store(low + values_at, select(is_after, b, a))
        store(high + values_at, select(is_after, a, b))
        store(low + places_at, select(is_after, place_b, place_a))
        store(high + places_at, select(is_after, place_a, place_b))
        store(low + weights_at, select(is_after, weight_b, weight_a))
        store(high + weights_at, select(is_after, weight_a, weight_b))

    @inline
    def sort(x: int, scratch: int) -> None:
        for i in range(size):
            here = scratch + i * F32_BYTES
            store(here + values_at, load(F32, x + i * F32_BYTES))
            store(here + weights_at, load(F32, here))
            store(here + places_at, splat(F32, f32(i)))
        for stage in range(1, stages):  # bitonic
            for step in range(stage):
                distance = (1 << stage) >> (step + 1)
                for i in range(size):
                    other = i ^ distance
                    if other > i:
                        here, there = scratch + i * F32_BYTES, scratch + other * F32_BYTES
                        if (i >> stage) & 1 == 0:
                            exchange(here, there)
                        else:
                            exchange(there, here)

    return sort


class _TernaryPlaces(NamedTuple):
    """In scratch: a group's scale; the groups' scales; of each vector the entry and the shift."""

    scale: int
    scales: int
    entries: int
    shifts: int


def _places(size: int) -> _TernaryPlaces:
    scales = size + 1
    entries = scales + 256 // size
    return _TernaryPlaces(*(place * F32_BYTES for place in (size, scales, entries, entries + 32)))


def _make_choice(book: Codebook, size: int) -> Any:
    """An inline function: the entries of a group's vectors, by the bounds of its levels."""
    length, levels, nearest, _ = book
    vectors, at, scale_at = size // length, split_places(size), _places(size).scale
    values_at, places_at = at.values, at.places

    @inline
    def bound(place: Vector, scratch: int) -> tuple[Vector, Vector]:
        """The value and the place of the sorted number `place`; infinity past the last."""
        value, original = splat(F32, f32(math.inf)), zero(F32)
        for i in range(size):
            is_here = place == splat(F32, f32(i))
            value = select(is_here, load(F32, scratch + values_at + i * F32_BYTES), value)
            original = select(is_here, load(F32, scratch + places_at + i * F32_BYTES), original)
        return value, original

    @inline
    def choose(
        x: int, first: Vector, second: Vector, is_negative: Vector, scratch: int, entries: int, shifts: int
    ) -> None:
        """The levels -1 and 1 are exchanged where the scale is negative."""
        first_value, first_place = bound(first, scratch)
        second_value, second_place = bound(second, scratch)
        for vector in range(vectors):
            key = zero(F32)
            for i in range(length):
                place = vector * length + length - 1 - i
                value, own = load(F32, x + place * F32_BYTES), splat(F32, f32(place))
                below_first = (value < first_value) | ((value == first_value) & (own < first_place))
                below_second = (value < second_value) | ((value == second_value) & (own < second_place))
                digit = select(below_first, zero(F32), select(below_second, splat(F32, 1.0), splat(F32, 2.0)))
                key = key * float(levels) + select(is_negative, 2.0 - digit, digit)
            part, entry = vector * length * F32_BYTES, entries + vector * F32_BYTES
            shift = shifts + vector * F32_BYTES
            nearest(convert(I32, key), x + part, scratch + part, scratch + scale_at, shift, entry)

    return choose


def _make_refit(book: Codebook, size: int) -> Any:
    """An inline function: the scale of the least squares, where a vector is not what the levels were."""
    length, _, _, number = book

    @inline
    def refit(x: int, scale: Vector, scratch: int, entries: int, shifts: int) -> Vector:
        sum_lx, sum_l2, flags = zero(F32), zero(F32), zero(I32)
        for vector in range(size // length):
            entry, shift = load(I32, entries + vector * F32_BYTES), load(F32, shifts + vector * F32_BYTES)
            flags |= entry
            for i in range(length):
                at = (vector * length + i) * F32_BYTES
                meant = number(entry, i, shift)
                weighed = load(F32, scratch + at) * meant
                sum_lx += weighed * load(F32, x + at)
                sum_l2 += weighed * meant
        is_better = is_neighbour(flags) & (sum_lx > 0.0) & (sum_l2 > 0.0)
        return select(is_better, sum_lx / sum_l2, scale)

    return refit


def make_ternary(size: int, smallest: float, weighted: bool, split: Any) -> Ternary:
    """Of groups of `size`; those without a number of magnitude `smallest` are zeros."""
    book, places = make_codebook(iq1_codebook(), shells=3, ternary=True), _places(size)
    sort = _make_sort(size)
    choose, refit = _make_choice(book, size), _make_refit(book, size)
    scale_at, scales_at, entries_at, shifts_at = places
    vectors = size // book.length

    @inline
    def search(x: int, weights: int, mean: Vector, scratch: int) -> Vector:
        most = zero(F32)
        for group in range(256 // size):
            values, first_vector = x + group * size * F32_BYTES, group * vectors * F32_BYTES
            entries, shifts = scratch + entries_at + first_vector, scratch + shifts_at + first_vector
            store_weights(values, weights + group * size * F32_BYTES, mean, size, scratch, weighted)
            sort(values, scratch)
            scale, first, second, shift_of_first, shift_of_second, best = split(scratch)
            is_zero = (largest_magnitude(values, size) < f32(smallest)) | (best < 0.0)
            is_negative = scale < 0.0
            scale = select(is_negative, -scale, scale)
            for vector in range(vectors):
                shift = shift_of_first if vector < vectors // 2 else shift_of_second
                shift = select(is_negative, -shift, shift)
                store(shifts + vector * F32_BYTES, select(is_zero, splat(F32, f32(SHIFT)), shift))
            store(scratch + scale_at, scale)
            choose(values, first, second, is_negative, scratch, entries, shifts)
            scale = select(is_zero, zero(F32), refit(values, scale, scratch, entries, shifts))
            for vector in range(0, vectors * F32_BYTES, F32_BYTES):
                store(entries + vector, select(is_zero, zero(I32), load(I32, entries + vector)))
            store(scratch + scales_at + group * F32_BYTES, scale)
            most = maximum(scale, most)
        return most

    return Ternary(search, book.number, scales_at, entries_at, shifts_at)
