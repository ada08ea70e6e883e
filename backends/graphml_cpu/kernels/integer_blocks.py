"""Blocks of 32 weights that meet packed int8 activations: Q4_0, Q4_1 and Q8_0, as GGUF stores them.

Gives one operation on a group of four blocks, `add_group`, in the level's widest vectors. Knows the block
formats and the packed layout; knows nothing of rows, matrices or threads.
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
    WIDTH,
    bitcast,
    concatenate,
    dot4,
    dot4_signed,
    fma,
    gather_f16,
    load,
    shuffle_by,
    to_float,
    vector,
    zero,
)

Offsets = tuple[int, int, int, int]

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


def make_add_group(format: BlockFormat, tokens: int) -> Callable[..., Any]:
    """An inline function `add_group(w, blocks, xs, sums, minima) -> (sums, minima)` for 1 or 4 tokens.

    `w` is the address of a group of four blocks, `blocks` the offsets of the four, `xs` the addresses of the
    packed groups of the tokens. `sums` (one F32 per token, its lanes still to be added) get the products
    without the format's minimum, `minima` (one vector of 4 per token) the sums that the minimum is a factor
    of.
    """
    add = _chain([_make_step(format, tokens, step) for step in range(STEPS)])
    block_bytes, minimum, constant = format.block_bytes, format.minimum, format.offset != 0
    no_minimum = not minimum and not constant

    @inline
    def add_minimum(factor: Vector, xs: Any, minima: Any) -> Any:
        if no_minimum:
            return minima
        if tokens == 1:
            return (fma(factor, load(F32x4, xs[0] + packed.SCALED_SUM), minima[0]),)
        return (
            fma(factor, load(F32x4, xs[0] + packed.SCALED_SUM), minima[0]),
            fma(factor, load(F32x4, xs[1] + packed.SCALED_SUM), minima[1]),
            fma(factor, load(F32x4, xs[2] + packed.SCALED_SUM), minima[2]),
            fma(factor, load(F32x4, xs[3] + packed.SCALED_SUM), minima[3]),
        )

    @inline
    def add_group(w: int, blocks: Offsets, xs: Any, sums: Any, minima: Any) -> Any:
        scales = gather_f16(w, blocks)
        sums = add(w, blocks, scales, xs, sums)
        if minimum != 0:
            return sums, add_minimum(gather_f16(w + minimum, blocks), xs, minima)
        return sums, add_minimum(scales, xs, minima)

    assert block_bytes
    return add_group


def _make_step(format: BlockFormat, tokens: int, step: int) -> Callable[..., Any]:
    halves, dot = make_halves(format, step), make_dot(format)
    spread = shuffle_by(tuple(step * BLOCKS_AT_ONCE + lane // 4 for lane in range(WIDTH)))
    at_low = step * BLOCKS_AT_ONCE * 16
    at_high = packed.HIGH_HALF + at_low

    @inline
    def product(low: Vector, high: Vector, scales: Vector, x: int, total: Vector) -> Vector:
        found = dot(dot(zero(I32), low, load(I8, x + at_low)), high, load(I8, x + at_high))
        return fma(to_float(found), spread(scales * load(F32x4, x + packed.SCALE)), total)

    @inline
    def one(w: int, blocks: Offsets, scales: Vector, xs: Any, sums: Any) -> Any:
        low, high = halves(w, blocks)
        return (product(low, high, scales, xs[0], sums[0]),)

    @inline
    def four(w: int, blocks: Offsets, scales: Vector, xs: Any, sums: Any) -> Any:
        low, high = halves(w, blocks)
        return (
            product(low, high, scales, xs[0], sums[0]),
            product(low, high, scales, xs[1], sums[1]),
            product(low, high, scales, xs[2], sums[2]),
            product(low, high, scales, xs[3], sums[3]),
        )

    return one if tokens == 1 else four


def _chain(steps: list[Callable[..., Any]]) -> Callable[..., Any]:
    """The steps one after the other, as one inline function."""
    if len(steps) == 1:
        return steps[0]
    first, rest = steps[0], _chain(steps[1:])

    @inline
    def chained(w: int, blocks: Offsets, scales: Vector, xs: Any, sums: Any) -> Any:
        return rest(w, blocks, scales, xs, first(w, blocks, scales, xs, sums))

    return chained
