"""Rows of activations as 8-bit numbers, and rows of weights that meet them by products of four bytes.

A row of k activations (a multiple of 32) takes 9 * k / 32 words in nine planes of k / 32: word j of plane i
is word i of the j-th group of 32 numbers; the last plane has the sum of each group's numbers in 13 bits, and
above it its scale, a float32 without its sign and its last 12 bits: more exact than a half, with all of its
range. So neighbours read neighbours, whichever word of their groups they read. The values are those of
`graphml.ir.activation_blocks`, within the rounding of the scale. Knows nothing of graphs.
"""

from __future__ import annotations

import math
from typing import Any

from graphml_gpu.kernels.formats import reader
from graphml_gpu.kernels.products.mat_vec_rows import Teams, sum_over_lanes
from graphml_gpu.kernels.weight_rows import WeightRowFormat, row_bytes
from graphml_gpu.language import (
    Array,
    Read,
    Vector,
    bitcast,
    dot4_i8,
    f32,
    function,
    i32,
    isnan,
    local_id,
    private_array,
    select,
    trunc,
    u32,
    u32x4,
    unroll,
)

PLANES = 9
"""Words of a group: eight of numbers and one of its scale and sum."""


@function
def scale_and_sum(word: u32) -> tuple[f32, f32]:
    """The scale of a group, and its product with the sum of the group's numbers."""
    d = bitcast(f32, (word >> 1) & 0x7FFFF000)
    return d, d * f32(bitcast(i32, word << 19) >> 19)


@function
def head_word(d: f32, total: i32) -> u32:
    """The word of a group's scale, rounded to nearest even, and of the sum of its numbers."""
    bits = bitcast(u32, d)
    rounded = (bits + 0x7FF + ((bits >> 12) & 1)) >> 12
    return (rounded << 13) | (bitcast(u32, total) & 0x1FFF)


@function
def dot16(a: Vector[int], b: Vector[int], acc: i32) -> i32:
    """acc + the product of sixteen signed bytes with sixteen."""
    return dot4_i8(a.w, b.w, dot4_i8(a.z, b.z, dot4_i8(a.y, b.y, dot4_i8(a.x, b.x, acc))))


@function
def group_product(
    first: Vector[int], last: Vector[int], scale: f32, last_scale: f32, offset: f32,
    x_first: Vector[int], x_last: Vector[int], d: f32, total: f32, HALVES: bool,
) -> f32:  # fmt: skip
    """The product of a group of weights with a group of activations."""
    if HALVES:
        upper = f32(dot16(last, x_last, i32(0))) * last_scale
        return d * (f32(dot16(first, x_first, i32(0))) * scale + upper) + total * offset
    return d * (f32(dot16(last, x_last, dot16(first, x_first, i32(0)))) * scale) + total * offset


@function
def int8_products(
    w: Any, table: Read[u32], x: Read[u32], begin: u32, row: u32, column: u32, n: u32, k: u32, columns: u32,
    FORMAT: WeightRowFormat, TEAMS: Teams,
) -> Array[f32]:  # fmt: skip
    """As `mat_vec_rows.float_products`, with rows of x as this file says."""
    integers = reader(FORMAT.name).integers
    assert integers is not None, FORMAT.name
    each = reader(FORMAT.name).block_elements // 32
    parts = each // integers.groups
    sums = private_array(f32, TEAMS.rows * TEAMS.columns)
    for i in unroll(TEAMS.rows * TEAMS.columns):
        sums[i] = 0.0
    numbers = private_array(u32x4, TEAMS.rows * integers.groups * 2)
    factors = private_array(f32, TEAMS.rows * integers.groups * 3)
    groups = k // 32
    for unit in range(local_id(0) % TEAMS.lanes, groups // integers.groups, TEAMS.lanes):
        block, part = unit // parts, unit % parts
        for r in unroll(TEAMS.rows):
            start = begin + min(row + r * TEAMS.count, n - 1) * row_bytes(k, FORMAT.name)
            at = start + block * reader(FORMAT.name).block_bytes
            unpacked = integers.unpack(w, table, at, part, FORMAT.align)
            for g in unroll(integers.groups):
                here = r * integers.groups + g
                numbers[2 * here] = unpacked[5 * g]
                numbers[2 * here + 1] = unpacked[5 * g + 1]
                for i in unroll(3):
                    factors[3 * here + i] = unpacked[5 * g + 2 + i]
        for c in unroll(TEAMS.columns):
            for g in unroll(integers.groups):
                place = min(column + c, columns - 1) * (PLANES * groups) + block * each
                place += integers.place(part, g)
                x_first = u32x4(x[place], x[place + groups], x[place + 2 * groups], x[place + 3 * groups])
                x_last = u32x4(
                    x[place + 4 * groups], x[place + 5 * groups], x[place + 6 * groups], x[place + 7 * groups]
                )
                d, total = scale_and_sum(x[place + 8 * groups])
                for r in unroll(TEAMS.rows):
                    here = r * integers.groups + g
                    sums[r * TEAMS.columns + c] += group_product(
                        numbers[2 * here], numbers[2 * here + 1], factors[3 * here], factors[3 * here + 1],
                        factors[3 * here + 2], x_first, x_last, d, total, integers.halves,
                    )  # fmt: skip
    sum_over_lanes(sums, TEAMS.group, TEAMS.lanes, TEAMS.rows * TEAMS.columns)
    return sums


@function
def rounded(value: f32) -> i32:
    """To the nearest whole number, halves away from zero."""
    return i32(trunc(value + select(value < 0.0, -0.5, 0.5)))


@function
def inverse_of(d: f32) -> f32:
    """What values are multiplied with to be numbers of scale d: 0 where there are none."""
    inverted = 1.0 / d
    return select(inverted < 3e38, inverted, 0.0)


@function
def magnitude(x: f32) -> f32:
    """|x|, infinite for a NaN, which a max would lose."""
    return select(isnan(x), math.inf, abs(x))


@function
def number_of(x: f32, inverse: f32) -> i32:
    """A value as a number of its group, 0 where the scale says that there is none."""
    scaled = x * inverse
    return rounded(select(isnan(scaled), 0.0, scaled))


@function
def packed(a: i32, b: i32, c: i32, d: i32) -> u32:
    """Four signed bytes, the first lowest."""
    low = (bitcast(u32, a) & 255) | ((bitcast(u32, b) & 255) << 8)
    return low | ((bitcast(u32, c) & 255) << 16) | (bitcast(u32, d) << 24)


@function
def store_group(out: Any, row: u32, group: u32, groups: u32, values: Array[f32]) -> None:
    """Write 32 values as group number `group` of a row of so many; with a NaN, as `int8_quads.store_quad`."""
    largest = f32(0.0)
    for i in unroll(32):
        largest = max(largest, magnitude(values[i]))
    d = largest / 127.0
    inverse = inverse_of(d)
    total = i32(0)
    place = row * (PLANES * groups) + group
    for j in unroll(8):
        a, b = number_of(values[4 * j], inverse), number_of(values[4 * j + 1], inverse)
        c, e = number_of(values[4 * j + 2], inverse), number_of(values[4 * j + 3], inverse)
        total += a + b + c + e
        out[place + j * groups] = packed(a, b, c, e)
    out[place + 8 * groups] = head_word(d, total)
