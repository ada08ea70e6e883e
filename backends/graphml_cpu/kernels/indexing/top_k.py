"""The largest elements of each row, and elements of each row by number.

A row belongs to one thread; all threads together look which blocks of a long row are worth reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, share
from graphml_cpu.layouts import ROW_BLOCK
from graphml_cpu.simd import (
    F32,
    WIDTH,
    any_lane,
    f32,
    load,
    load_f32,
    load_i32,
    load_partial,
    max_lanes,
    maximum,
    ramp,
    select,
    splat,
    store_f32,
    store_i32,
)


@inline
def _before(a: float, b: float) -> bool:
    """Whether a stands before b, which came first: larger, or a number where b is a NaN."""
    return a > b or (b != b and a == a)  # a NaN is not itself


@inline
def _insert(x: int, chosen: int, filled: int, k: int, i: int) -> int:
    """Put element i in its place among `filled` chosen ones, where the last may fall out; how many then."""
    value = load_f32(x + i * 4)
    place = filled
    while place > 0 and _before(value, load_f32(x + load_i32(chosen + (place - 1) * 4) * 4)):
        if place < k:
            store_i32(chosen + place * 4, load_i32(chosen + (place - 1) * 4))
        place -= 1
    if place < k:
        store_i32(chosen + place * 4, i)
    return min(filled + 1, k)


@inline
def _none_before(x: int, chosen: int, k: int, first: int) -> bool:
    """Whether no element of the vector at `first` stands before the last chosen one; False if unsure."""
    last = load_f32(x + load_i32(chosen + (k - 1) * 4) * 4)
    return last == last and not any_lane(load(F32, x + first * 4) > last)


@inline
def choose(x: int, begin: int, end: int, k: int, chosen: int, filled: int) -> int:
    """Put elements begin to end of the row at x among the `filled` chosen ones, at most k; how many then."""
    for first in range(begin, end, WIDTH):
        if filled == k and first + WIDTH <= end and _none_before(x, chosen, k, first):
            continue
        for i in range(first, min(first + WIDTH, end)):
            filled = _insert(x, chosen, filled, k, i)
    return filled


def make_top_k() -> Callable[..., None]:
    """out[row] = numbers of the k largest elements of x[row], the largest first, the first of equals first.

    x float32 [rows, n], rows `x_stride` bytes apart; out int32 [rows, k], 0 < k <= n. A NaN is smaller than
    all numbers.
    """

    def top_k(ith: Int, nth: Int, x: Address, out: Address, n: Int, k: Int, x_stride: Int, rows: Dim) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            choose(x + row * x_stride, 0, n, k, out + row * k * 4, 0)

    return top_k


def make_block_maxima() -> Callable[..., None]:
    """maxima[row, block] = the largest number of a block of x[row], -inf where it has none but NaN.

    x as in `top_k`; blocks of `layouts.ROW_BLOCK`, a multiple of every vector's width; maxima float32
    [rows, blocks].
    """

    def block_maxima(
        ith: Int, nth: Int, x: Address, maxima: Address, n: Int, x_stride: Int, rows: Dim
    ) -> None:
        blocks = (n + ROW_BLOCK - 1) // ROW_BLOCK
        begin, end = share(ith, nth, rows * blocks)
        least = splat(F32, -math.inf)
        for unit in range(begin, end):
            source, first = x + unit // blocks * x_stride, unit % blocks * ROW_BLOCK
            last = min(first + ROW_BLOCK, n)
            top = least
            for i in range(first, last - last % WIDTH, WIDTH):
                top = maximum(load(F32, source + i * 4), top)  # NaN is not larger
            rest = last % WIDTH
            if rest > 0:
                v = load_partial(F32, source + (last - rest) * 4, rest)
                top = maximum(select(ramp(F32) < f32(rest), v, least), top)
            store_f32(maxima + unit * 4, max_lanes(top))

    return block_maxima


def make_top_k_of_blocks() -> Callable[..., None]:
    """out = top_k(x), where `block_maxima` made the maxima: k of them are no more than the k largest of x.

    x and out as in `top_k`; no fewer blocks than k.
    """

    def top_k_of_blocks(
        ith: Int,
        nth: Int,
        x: Address,
        maxima: Address,
        out: Address,
        n: Int,
        k: Int,
        x_stride: Int,
        rows: Dim,
    ) -> None:
        blocks = (n + ROW_BLOCK - 1) // ROW_BLOCK
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            source, tops, chosen = x + row * x_stride, maxima + row * blocks * 4, out + row * k * 4
            choose(tops, 0, blocks, k, chosen, 0)
            least = load_f32(tops + load_i32(chosen + (k - 1) * 4) * 4)
            filled = 0
            for block in range(blocks):
                if load_f32(tops + block * 4) >= least:
                    first = block * ROW_BLOCK
                    filled = choose(source, first, min(first + ROW_BLOCK, n), k, chosen, filled)

    return top_k_of_blocks


def make_gather() -> Callable[..., None]:
    """out[row, j] = x[row, ids[row, j]]; elements of 4 bytes.

    x [rows, n], rows `x_stride` bytes apart; ids int32 [rows, k]; out [rows, k], 0 for an id outside.
    """

    def gather(
        ith: Int, nth: Int, x: Address, ids: Address, out: Address, n: Int, k: Int, x_stride: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            for place in range(row * k * 4, (row + 1) * k * 4, 4):
                column, value = load_i32(ids + place), 0
                if 0 <= column < n:
                    value = load_i32(x + row * x_stride + column * 4)
                store_i32(out + place, value)

    return gather


def make_column_numbers() -> Callable[..., None]:
    """out[row] = 0, 1, ... n - 1, divided by `each` and rounded down; out int32 [rows, n]."""

    def column_numbers(ith: Int, nth: Int, out: Address, n: Int, each: Int, rows: Dim) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            for i in range(n):
                store_i32(out + (row * n + i) * 4, i // each)

    return column_numbers


@inline
def _two_largest(x: int, n: int) -> Number:
    """The sum of the two largest of n elements."""
    first, second = load_f32(x), load_f32(x + 4)
    if second > first:
        first, second = second, first
    for i in range(2, n):
        value = load_f32(x + i * 4)
        if value > first:
            first, second = value, first
        elif value > second:
            second = value
    return first + second


def make_top_k_groups() -> Callable[..., None]:
    """out = x in the `n_used` groups of each row whose two largest sum to most, else minus infinity.

    x and out float32 [rows, n_group * size], size at least 2; the first of equal groups comes first.
    """

    def top_k_groups(
        ith: Int, nth: Int, x: Address, out: Address, n_group: Int, size: Int, n_used: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows * n_group)
        for unit in range(begin, end):
            row = unit // n_group
            group = unit - row * n_group
            worth = _two_largest(x + unit * size * 4, size)
            before = 0
            for other in range(n_group):
                theirs = _two_largest(x + (row * n_group + other) * size * 4, size)
                if theirs > worth or (theirs == worth and other < group):
                    before += 1
            for i in range(unit * size, (unit + 1) * size):
                store_f32(out + i * 4, load_f32(x + i * 4) if before < n_used else -math.inf)

    return top_k_groups
