"""What the integer products want of a format: a `CpuFormatReader`, and the moves that readers share.

A reader reads a unit of a row, one or two groups of 128 weights, into vectors of 64 bytes that lie as packed
activations do (`graphml_cpu.packed`): weights 0 to 15 of the blocks 0, 1, 2, 3 of 32, then weights 16 to 31.
Vectors here have 64 bytes whatever the level: LLVM splits them into registers. Knows no format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    bitcast,
    concatenate,
    constant_lanes,
    convert,
    gather_f16,
    load,
    load_u8,
    load_u16,
    rotate_right_by,
    shuffle_by,
    shuffle_pair_by,
    splat,
    vector,
    zero,
)

I8x64, U8x16, U8x64 = vector("i8", 64), vector("u8", 16), vector("u8", 64)
F32x4, F32x8, F32x16 = vector("f32", 4), vector("f32", 8), vector("f32", 16)
_U32x16, _F16x16 = vector("u32", 16), vector("f16", 16)
_I32x16 = vector("i32", 16)
_U8x4, _WORD = vector("u8", 4), vector("u32", 1)
_U64x1, _MASK64 = vector("u64", 1), vector("i1", 64)


@dataclass(frozen=True)
class CpuFormatReader:
    """How one format is read.

    `read(address)` gives the groups of a unit, a tuple of `groups` (1 or 2) tuples (values, scales, minima):

    values
        two vectors of 64 bytes, weights 0 to 15 and 16 to 31 of the four blocks: U8x64, each weight plus
        `offset`, at most 127 (any byte with VNNI); or, with `signed`, I8x64.
    scales
        a tuple of one F32x4, the scales of the four blocks; where `scales` is 2, of two: for weights 0 to 15
        of the blocks and for 16 to 31.
    minima
        what is added to each weight times its scale. Nothing: the empty tuple. Where `minima` is 1 an F32x4,
        one for each block; where it is 2 an F32x8, those of weights 0 to 15 of the blocks, then of 16 to 31.

    A weight is (value - offset) * scale + minimum; `offset`: 0, 1, 2, 4 ... 128. A unit has `unit_bytes` and
    `groups` * 128 weights, stored in blocks of `block_elements` weights and `block_bytes` bytes. Formats
    whose blocks are smaller than a unit (of one group) also give `read_rest(address, blocks)`: the groups of
    a row's last 1, 2, ... blocks. It touches nothing behind them. What it gives in the places of missing
    blocks does not count, but may not be less finite than the row is: the last block again.

    Some formats also give, for vectors of 64 bytes:

    read_numbers, read_rest_numbers
        of units at four addresses (and their blocks) for each group the scales and minima, in lanes 4 * row +
        block of F32x16.
    read_words, read_rest_words
        `(a, b, c, d, group)` and `(a, b, c, d, blocks)`: the values of a group of four rows as two tuples of
        four vectors: lane 4 * row + block has bytes 0 to 3, 4 to 7 ... of the half of the block.
    sums
        `(a, b, c, d, group, x)`, a group of units at four addresses times the packed group of a token at x: a
        tuple of `scales` I32x16, integer sums of blocks (or of both halves of them) in lanes 4 * row + block.
    """

    unit_bytes: int
    block_bytes: int
    block_elements: int
    read: Callable[..., Any]
    read_rest: Any = None
    groups: int = 1
    scales: int = 1
    minima: int = 0
    offset: int = 0
    signed: bool = False
    read_numbers: Any = None
    read_rest_numbers: Any = None
    read_words: Any = None
    read_rest_words: Any = None
    sums: Any = None


def take(lanes: Sequence[int]) -> Any:
    """An operation: four lanes of a vector: a group's scales from a unit's."""
    return shuffle_by(lanes)


def pick_quarters(order: Sequence[int]) -> Any:
    """An operation: 16 bytes four times from a vector of 64 bytes, in the order of `order` (0 to 3 each)."""
    return shuffle_by([16 * quarter + byte for quarter in order for byte in range(16)])


def shift_quarters(counts: Sequence[int]) -> Any:
    """An inline function: 64 bytes shifted right, each quarter by its own count.

    A byte gets bits of its neighbour from above: only its lowest 8 - count bits are its own; mask the rest.
    """
    shifts = constant_lanes(_U32x16, [count for count in counts for _ in range(4)])

    @inline
    def shifted(values: Vector) -> Vector:
        return bitcast(U8x64, bitcast(_U32x16, values) >> shifts())

    return shifted


def rotate_quarters(counts: Sequence[int]) -> Any:
    """An inline function: as `shift_quarters`, but rotating: a count of 32 - n shifts left by n bits."""
    rotate = rotate_right_by([count for count in counts for _ in range(4)])

    @inline
    def rotated(values: Vector) -> Vector:
        return bitcast(U8x64, rotate(bitcast(_U32x16, values)))

    return rotated


_repeat16 = shuffle_by([byte % 16 for byte in range(64)])


@inline
def broadcast16(address: int) -> Vector:
    """16 bytes at an address, four times."""
    return _repeat16(load(U8x16, address))


@inline
def load_quarters(a: int, b: int, c: int, d: int) -> Vector:
    """16 bytes at each of four addresses, side by side."""
    return concatenate(
        concatenate(load(U8x16, a), load(U8x16, b)), concatenate(load(U8x16, c), load(U8x16, d))
    )


def pick_words(places: Sequence[int], top: bool = False) -> Any:
    """An inline function: 16 int32, each a byte of a vector of 64; with `top` as its highest byte."""
    byte = 3 if top else 0
    order = [places[lane // 4] if lane % 4 == byte else 64 + lane for lane in range(64)]
    pick = shuffle_pair_by(order)

    @inline
    def words(values: Vector) -> Vector:
        return bitcast(_I32x16, pick(values, zero(U8x64)))

    return words


def repeat_halves(offset: int) -> Any:
    """An inline function: the IEEE half at `offset` of each quarter of 64 bytes four times, F32x16."""
    pick = shuffle_by([16 * (lane // 4) + offset + byte for lane in range(16) for byte in range(2)])

    @inline
    def repeated(values: Vector) -> Vector:
        return convert(F32x16, bitcast(_F16x16, pick(values)))

    return repeated


@inline
def signed_bytes(values: Vector) -> Vector:
    """64 unsigned bytes as signed ones."""
    return bitcast(I8x64, values)


@inline
def block_halves(a: int, b: int, c: int, d: int) -> Vector:
    """The IEEE halves at four addresses as F32x4."""
    return gather_f16(a, (0, b - a, c - a, d - a))


@inline
def everywhere(value: Number) -> Vector:
    """A number as the scales of four blocks."""
    return splat(F32x4, value)


@inline
def bits_at(a: int, b: int, c: int, d: int) -> Vector:
    """The 16 bits at each of four addresses as a mask of 64, the lowest bits first."""
    word = load_u16(a) | (load_u16(b) << 16) | (load_u16(c) << 32) | (load_u16(d) << 48)
    return bitcast(_MASK64, splat(_U64x1, word))


@inline
def as_mask(eight_bytes: Vector) -> Vector:
    """The 64 bits of a vector of 8 bytes as a mask, the lowest bits of each byte first."""
    return bitcast(_MASK64, eight_bytes)


@inline
def bytes_at(a: int, b: int, c: int, d: int) -> Vector:
    """The byte at each of four addresses: U8x4."""
    word = load_u8(a) | (load_u8(b) << 8) | (load_u8(c) << 16) | (load_u8(d) << 24)
    return bitcast(_U8x4, splat(_WORD, word))
