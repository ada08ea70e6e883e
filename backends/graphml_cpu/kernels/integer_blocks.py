"""Blocks of 32 weights that meet packed int8 activations: Q4_0, Q4_1 and Q8_0, as GGUF stores them.

Gives what reads a group of four blocks into the level's widest vectors, and what multiplies it. Knows the
block formats and the packed layout; knows nothing of rows, matrices or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    I8,
    I32,
    U8,
    WIDTH,
    bitcast,
    concatenate,
    convert,
    dot4,
    dot4_signed,
    fma,
    gather_f16,
    load,
    shuffle_by,
    shuffle_pair_by,
    to_float,
    vector,
    zero,
)

Offsets = tuple[int, int, int, int]

F16x4 = vector("f16", 4)
F32x4 = vector("f32", 4)
U8x16 = vector("u8", 16)
# Blocks that fill one vector of bytes with 16 bytes each, and vectors per group of four blocks.
BLOCKS_AT_ONCE = WIDTH // 4
STEPS = 4 // BLOCKS_AT_ONCE


@dataclass(frozen=True)
class BlockFormat:
    """A format of 32-weight blocks: a half scale, perhaps a half minimum, then 4-bit or 8-bit values.

    `offset` is what an unsigned value has too much (a constant minimum): it is taken off with the sums of the
    activations instead of value by value.
    """

    name: str
    block_bytes: int
    values: int  # byte offset of the values
    bits: int
    minimum: int  # byte offset of the half minimum, 0 if there is none
    offset: int


_VNNI = target.current().has_vnni
FORMATS = {
    "q4_0": BlockFormat("q4_0", block_bytes=18, values=2, bits=4, minimum=0, offset=8),
    "q4_1": BlockFormat("q4_1", block_bytes=20, values=4, bits=4, minimum=2, offset=0),
    # The instruction wants one unsigned operand; without it the weights stay signed.
    "q8_0": BlockFormat("q8_0", block_bytes=34, values=2, bits=8, minimum=0, offset=128 if _VNNI else 0),
}


def _make_load_bytes(step: int) -> Callable[..., Any]:
    """An inline function: 16 bytes of each of the blocks of this step, side by side."""
    first = step * BLOCKS_AT_ONCE
    second = first + 1

    @inline
    def load_four(at: int, blocks: Offsets) -> Vector:
        low = concatenate(load(U8x16, at + blocks[0]), load(U8x16, at + blocks[1]))
        return concatenate(low, concatenate(load(U8x16, at + blocks[2]), load(U8x16, at + blocks[3])))

    @inline
    def load_two(at: int, blocks: Offsets) -> Vector:
        return concatenate(load(U8x16, at + blocks[first]), load(U8x16, at + blocks[second]))

    @inline
    def load_one(at: int, blocks: Offsets) -> Vector:
        return load(U8x16, at + blocks[first])

    return {4: load_four, 2: load_two, 1: load_one}[BLOCKS_AT_ONCE]


def make_halves(format: BlockFormat, step: int) -> Callable[..., Any]:
    """An inline function `halves(w, blocks)`: weights 0 to 15 and 16 to 31 of the step's blocks, as bytes.

    The bytes are unsigned (with the format's offset), or signed where `format` is 8 bits wide and has no
    offset.
    """
    load_bytes = _make_load_bytes(step)
    values = format.values

    @inline
    def nibbles(w: int, blocks: Offsets) -> tuple[Vector, Vector]:
        both = load_bytes(w + values, blocks)
        return both & 15, both >> 4

    @inline
    def biased(w: int, blocks: Offsets) -> tuple[Vector, Vector]:
        return load_bytes(w + values, blocks) ^ 128, load_bytes(w + values + 16, blocks) ^ 128

    @inline
    def signed(w: int, blocks: Offsets) -> tuple[Vector, Vector]:
        low, high = load_bytes(w + values, blocks), load_bytes(w + values + 16, blocks)
        return bitcast(I8, low), bitcast(I8, high)

    if format.bits == 4:
        return nibbles
    return biased if format.offset else signed


def make_dot(format: BlockFormat) -> Callable[..., Any]:
    """The dot product of four bytes that fits the bytes of `make_halves`."""
    return dot4_signed if format.bits == 8 and not format.offset else dot4


def make_read_group(format: BlockFormat) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions that read four blocks: `scattered(w, blocks)` and `contiguous(w)`.

    Both give (values, scales, factors): the vectors of `make_halves` for one step after the other, the
    blocks' scales, and what their sums of activations are multiplied with, the minima or once more the
    scales.
    """
    halves = _joined([make_halves(format, step) for step in range(STEPS)])
    size, minimum = format.block_bytes, format.minimum

    @inline
    def scattered(w: int, blocks: Offsets) -> tuple[Any, Vector, Vector]:
        scales = gather_f16(w, blocks)
        factors = scales if minimum == 0 else gather_f16(w + minimum, blocks)
        return halves(w, blocks), scales, factors

    @inline
    def contiguous(w: int) -> tuple[Any, Vector, Vector]:
        return scattered(w, (0, size, 2 * size, 3 * size))

    if target.current().has_byte_permutation and format.bits == 4:
        return scattered, _make_permuted(format)
    return scattered, contiguous


def _make_permuted(format: BlockFormat) -> Callable[..., Any]:
    """`contiguous(w)` of `make_read_group` where bytes can be permuted across two registers.

    Two overlapping loads hold the whole group; one instruction each collects the values, scales and minima.
    """
    size, minimum = format.block_bytes, format.minimum
    second = 4 * size - 64

    def collect(offset: int, count: int) -> Any:
        places = [block * size + offset + byte for block in range(4) for byte in range(count)]
        return shuffle_pair_by([at if at < 64 else 64 + at - second for at in places])

    collect_values, collect_scales, collect_minima = (
        collect(format.values, 16),
        collect(0, 2),
        collect(minimum, 2),
    )

    @inline
    def permuted(w: int) -> tuple[Any, Vector, Vector]:
        a, b = load(U8, w), load(U8, w + second)
        both = collect_values(a, b)
        scales = convert(F32x4, bitcast(F16x4, collect_scales(a, b)))
        factors = scales if minimum == 0 else convert(F32x4, bitcast(F16x4, collect_minima(a, b)))
        return (both & 15, both >> 4), scales, factors

    return permuted


def _joined(steps: list[Callable[..., Any]]) -> Callable[..., Any]:
    """The tuples that the steps give for the same arguments, one after the other, as one inline function."""
    if len(steps) == 1:
        return steps[0]
    first, rest = steps[0], _joined(steps[1:])

    @inline
    def joined(w: int, blocks: Offsets) -> Any:
        return first(w, blocks) + rest(w, blocks)

    return joined


def make_add_group(format: BlockFormat) -> Callable[..., Any]:
    """An inline function `add_group(group, x, total, least) -> (total, least)` for one token.

    `group` is what `make_read_group` reads, `x` the address of the token's packed group. `total` (F32, its
    lanes still to be added) gets the products without the format's minimum, `least` (4 lanes) the sums of
    activations times the group's factors.
    """
    add = _chain([_make_step(format, step) for step in range(STEPS)])
    has_factor = format.minimum != 0 or format.offset != 0

    @inline
    def add_group(group: Any, x: int, total: Vector, least: Vector) -> tuple[Vector, Vector]:
        values, scales, factors = group
        total = add(values, scales * load(F32x4, x + packed.SCALE), x, total)
        if has_factor:
            least = fma(factors, load(F32x4, x + packed.SCALED_SUM), least)
        return total, least

    return add_group


def _make_step(format: BlockFormat, step: int) -> Callable[..., Any]:
    dot = make_dot(format)
    spread = shuffle_by(tuple(step * BLOCKS_AT_ONCE + lane // 4 for lane in range(WIDTH)))
    at_low = step * BLOCKS_AT_ONCE * 16
    at_high = packed.HIGH_HALF + at_low
    low, high = 2 * step, 2 * step + 1

    @inline
    def product(values: Any, scales: Vector, x: int, total: Vector) -> Vector:
        found = dot(dot(zero(I32), values[low], load(I8, x + at_low)), values[high], load(I8, x + at_high))
        return fma(to_float(found), spread(scales), total)

    return product


def _chain(steps: list[Callable[..., Any]]) -> Callable[..., Any]:
    """The steps one after the other, as one inline function."""
    if len(steps) == 1:
        return steps[0]
    first, rest = steps[0], _chain(steps[1:])

    @inline
    def chained(values: Any, scales: Vector, x: int, total: Vector) -> Vector:
        return rest(values, scales, x, first(values, scales, x, total))

    return chained
