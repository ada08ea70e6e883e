"""IQ4_NL: blocks of 32 in 18 bytes: d, 16 bytes of nibbles i; x = d LEVELS[i]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_quant.iq4_nl import LEVELS, MIDPOINTS, SMALLEST

from graphml_cpu import target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader
from graphml_cpu.kernels.formats._nibble_blocks import NibbleBlocks, nibble_reader
from graphml_cpu.kernels.formats._unpack import (
    F32x32,
    I8x16,
    I32x32,
    U8x16,
    U8x32,
    floats,
    inverse,
    is_finite,
    largest,
    low_and_high,
    nibbles,
)
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    absolute,
    constant_table,
    convert,
    extract,
    f32,
    load,
    load_f16,
    load_f32,
    lookup16,
    select,
    splat,
    store,
    store_f16,
    zero,
)

levels = constant_table(LEVELS.astype("int8").tobytes())
_raised_levels = constant_table((LEVELS.astype("int16") + 128).astype("uint8").tobytes())
midpoints = constant_table(MIDPOINTS.astype("<f4").tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, levels())
        for block in range(k // 32):
            at = src + block * 18
            numbers = lookup16(table, nibbles(load(U8x16, at + 2)))
            store(dst + block * 128, floats(numbers) * load_f16(at))

    return decode


@inline
def _nearest(values: Vector) -> Vector:
    """The number of the level next to each value: how many midpoints it has reached."""
    index, at = zero(I32x32), midpoints()
    for i in range(15):
        index = index + select(values >= load_f32(at + i * 4), splat(I32x32, 1), zero(I32x32))
    return index


@inline
def _sum_in_order(values: Vector) -> Number:
    """The sum of 32 float32 lanes, from the first to the last."""
    total = f32(0.0)
    for lane in range(32):
        total = total + extract(values, lane)
    return total


def make_encode() -> Any:
    """`encode(src, dst, k)`: the value of largest magnitude becomes the first level, the others the nearest.

    Then the scale is that of the least squared error, weighed by the squares of the values; the sums go from
    the first value of a block to the last, so that they have the bits of `graphml_quant`'s.
    """
    top_level, smallest_top = float(LEVELS[0]), float(SMALLEST)

    @inline
    def encode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, levels())
        for block in range(k // 32):
            at, to = src + block * 128, dst + block * 18
            values = load(F32x32, at)
            scale: Number = f32(float("nan"))
            index = zero(I32x32)
            if is_finite(values):
                top, scale = largest(values, at), f32(0.0)
                is_kept = absolute(top) >= f32(smallest_top)
                first = inverse(top / f32(top_level)) if is_kept else f32(0.0)
                index = _nearest(values * first)
                near = floats(lookup16(table, convert(U8x32, index)))
                weighed = values * values * near
                with_values, with_levels = _sum_in_order(weighed * values), _sum_in_order(weighed * near)
                if is_kept and with_levels > f32(0.0):
                    scale = with_values / with_levels
            store_f16(to, scale)
            store(to + 2, low_and_high(index))

    return encode


def offset_of_levels() -> dict[str, Any]:
    """What a `CpuFormatReader` says of values of `make_level_of` (IQ4_XS's too)."""
    return {"offset": 128} if target.current().has_vnni else {"signed": True}


def make_level_of() -> Callable[..., Any]:
    """An inline function: levels of indices from 0 to 15, raised as dot products want them (IQ4_XS's too)."""

    @inline
    def level_of(indices: Vector) -> Vector:
        return lookup16(load(I8x16, levels()), indices)

    @inline
    def raised_level_of(indices: Vector) -> Vector:
        return lookup16(load(U8x16, _raised_levels()), indices)

    return raised_level_of if target.current().has_vnni else level_of


def make_read() -> CpuFormatReader:
    """Four blocks a unit; levels."""
    return nibble_reader(NibbleBlocks(), make_level_of(), **offset_of_levels())
