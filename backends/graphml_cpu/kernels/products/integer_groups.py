"""A group of 128 weights, as a format's `Reader` gives it, times one token's packed group.

Knows the packed layout and what a `Reader` says; knows nothing of formats, rows, matrices or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import F32x4, F32x8, I8x64, Reader, U8x64
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    constant_lanes,
    dot4,
    dot4_signed,
    fma,
    load,
    shuffle_by,
    to_float,
    vector,
    zero,
)

I32x16 = vector("i32", 16)
# Each of four numbers in the four lanes that its block has in a register.
_spread = shuffle_by([lane // 4 for lane in range(16)])


@dataclass(frozen=True)
class Operand:
    """How a reader's values enter the dot product: `dot(total, prepare(values), activations)`.

    The instruction wants one unsigned operand. `shift`: by how many bits a seed is shifted right to leave the
    offset of the prepared values away; None: they have no offset.
    """

    dot: Callable[..., Any]
    prepare: Callable[..., Any]
    shift: int | None
    signed: bool


@inline
def _as_it_is(values: Vector) -> Vector:
    return values


def _make_raise(by: int) -> Callable[..., Any]:
    @inline
    def raised(values: Vector) -> Vector:
        return bitcast(U8x64, values) + by

    return raised


def make_operand(reader: Reader, for_panel: bool = False) -> Operand:
    """The operand of a reader's values at the level of the process.

    A panel's values are prepared once for many tokens: where an unsigned byte may have all its values, their
    offset is made 128, so that tokens need not shift their seeds.
    """
    vnni = target.current().has_vnni
    if reader.signed and not vnni:
        return Operand(dot4_signed, _as_it_is, shift=None, signed=True)
    if reader.signed:
        return Operand(dot4, _make_raise(128), shift=0, signed=False)
    if not reader.offset:
        return Operand(dot4, _as_it_is, shift=None, signed=False)
    if vnni and for_panel:
        return Operand(dot4, _make_raise(128 - reader.offset), shift=0, signed=False)
    return Operand(dot4, _as_it_is, shift=8 - reader.offset.bit_length(), signed=False)


def _make_seed(shift: int | None, lanes: tuple[int, ...] | None) -> Callable[..., Any]:
    """An inline function `seed(x)`: what the integer sums of the group at `x` begin with.

    `lanes`: which of a block's four seeds count; None: all, that is both halves of the block.
    """
    mask = constant_lanes(I32x16, [-1 if lane % 4 in (lanes or ()) else 0 for lane in range(16)])

    @inline
    def nothing(x: int) -> Vector:
        return zero(I32x16)

    @inline
    def everything(x: int) -> Vector:
        return load(I32x16, x + packed.SEEDS) >> shift

    @inline
    def some(x: int) -> Vector:
        return (load(I32x16, x + packed.SEEDS) & mask()) >> shift

    if shift is None:
        return nothing
    return some if lanes else everything


def _make_products(reader: Reader) -> Callable[..., Any]:
    """An inline function `add(group, x, total)`: the total plus the scaled products of a group."""
    operand = make_operand(reader)
    dot, prepare = operand.dot, operand.prepare
    both, low_seed, high_seed = (_make_seed(operand.shift, lanes) for lanes in (None, (0,), (1,)))

    @inline
    def by_blocks(group: Any, x: int, total: Vector) -> Vector:
        values, scales, _ = group
        found = dot(both(x), prepare(values[0]), load(I8x64, x))
        found = dot(found, prepare(values[1]), load(I8x64, x + packed.HIGH_HALF))
        return fma(to_float(found), _spread(scales[0] * load(F32x4, x + packed.SCALE)), total)

    @inline
    def by_halves(group: Any, x: int, total: Vector) -> Vector:
        values, scales, _ = group
        low = dot(low_seed(x), prepare(values[0]), load(I8x64, x))
        high = dot(high_seed(x), prepare(values[1]), load(I8x64, x + packed.HIGH_HALF))
        products = fma(to_float(low), _spread(scales[0]), to_float(high) * _spread(scales[1]))
        return fma(products, _spread(load(F32x4, x + packed.SCALE)), total)

    return by_blocks if reader.scales == 1 else by_halves


def make_add_group(reader: Reader) -> tuple[Callable[..., Any], Any]:
    """`add_group(group, x, total, least) -> (total, least)` for one token, and the type of `least`.

    `group` is what the reader reads, `x` the address of the token's packed group. `total` (F32x16, its lanes
    still to be added) gets the products, `least` the minima times the sums of activations.
    """
    add_products = _make_products(reader)

    @inline
    def of_blocks(group: Any, x: int, least: Vector) -> Vector:
        return fma(group[2], load(F32x4, x + packed.SUM), least)

    @inline
    def of_halves(group: Any, x: int, least: Vector) -> Vector:
        return fma(group[2], load(F32x8, x + packed.LOW_SUM), least)

    @inline
    def none(group: Any, x: int, least: Vector) -> Vector:
        return least

    add_minima = (none, of_blocks, of_halves)[reader.minima]

    @inline
    def add_group(group: Any, x: int, total: Vector, least: Vector) -> tuple[Vector, Vector]:
        return add_products(group, x, total), add_minima(group, x, least)

    return add_group, F32x8 if reader.minima == 2 else F32x4
