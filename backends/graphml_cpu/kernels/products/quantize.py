"""Activations -> packed rows, as weights want them (`graphml_cpu.packed` draws the layouts).

Knows these layouts; knows nothing of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.simd import (
    absolute,
    any_lane,
    bitcast,
    concatenate,
    convert,
    dot4,
    extract,
    f32_to_bf16,
    high_half,
    load,
    load_partial,
    low_half,
    maximum,
    select,
    shuffle_by,
    shuffle_pair_by,
    splat,
    store,
    to_float,
    vector,
    zero,
)

HALF = packed.BLOCK // 2
F32x16 = vector("f32", 16)
F32x4 = vector("f32", 4)
I32x16 = vector("i32", 16)
I8x16 = vector("i8", 16)
U8x64 = vector("u8", 64)
# Added to a small number, it leaves the nearest integer (ties to even) in the low bits of the sum.
_ROUNDER = 1.5 * 2.0**23
_ROUNDER_BITS = 0x4B400000
_INFINITY_BITS = 0x7F800000

_even = shuffle_pair_by((0, 2, 4, 6))
_odd = shuffle_pair_by((1, 3, 5, 7))
_evens = shuffle_by((0, 2, 4, 6, 8, 10, 12, 14))
_odds = shuffle_by((1, 3, 5, 7, 9, 11, 13, 15))
_even_half = shuffle_by((0, 2, 4, 6))
_odd_half = shuffle_by((1, 3, 5, 7))
_seeds = shuffle_pair_by([lane for block in range(4) for lane in (block, 4 + block, 8 + block, 12 + block)])


@inline
def _largest(low: Vector, high: Vector) -> Vector:
    """The bits of the largest magnitudes of a block, four lanes; NaN and infinity are above all numbers."""
    bits = maximum(bitcast(I32x16, absolute(low)), bitcast(I32x16, absolute(high)))
    eight = maximum(low_half(bits), high_half(bits))
    return maximum(low_half(eight), high_half(eight))


@inline
def _pairs_of(a: Vector, b: Vector) -> Vector:
    return maximum(_even(a, b), _odd(a, b))


@inline
def _rounded(x: Vector, inverse: Vector, block: int) -> Vector:
    return convert(I8x16, bitcast(I32x16, x * extract(inverse, block) + _ROUNDER) - _ROUNDER_BITS)


@inline
def _cleared(x: Vector, bits: Vector, block: int) -> Vector:
    """X, or zeros where the block of `bits` is not finite: such values must not be rounded to integers."""
    usable = splat(I32x16, extract(bits, block)) < _INFINITY_BITS
    return select(usable, x, zero(F32x16))


@inline
def _sums(q: Vector) -> Vector:
    """The sums of the four quarters of 64 int8."""
    fours = dot4(zero(I32x16), splat(U8x64, 1), q)
    twos = _evens(fours) + _odds(fours)
    return _even_half(twos) + _odd_half(twos)


@inline
def quantize_group(
    a0: Vector, a1: Vector, b0: Vector, b1: Vector, c0: Vector, c1: Vector, d0: Vector, d1: Vector, out: int
) -> None:
    """Quantise a group, given as the two halves (F32x16) of its four blocks, to the address `out`."""
    left = _pairs_of(_largest(a0, a1), _largest(b0, b1))
    right = _pairs_of(_largest(c0, c1), _largest(d0, d1))
    bits = _pairs_of(left, right)
    usable = bits < _INFINITY_BITS
    largest = bitcast(F32x4, bits)
    # For zero and for a subnormal largest the inverse is infinite: such a block counts as zero.
    inverse = 127.0 / largest
    counts = inverse < 3.0e38
    scale = select(counts, largest / 127.0, zero(F32x4))
    inverse = select(counts, inverse, zero(F32x4))
    if any_lane(bits >= _INFINITY_BITS):
        scale = select(usable, scale, splat(F32x4, float("nan")))
        inverse = select(usable, inverse, zero(F32x4))
        a0, a1 = _cleared(a0, bits, 0), _cleared(a1, bits, 0)
        b0, b1 = _cleared(b0, bits, 1), _cleared(b1, bits, 1)
        c0, c1 = _cleared(c0, bits, 2), _cleared(c1, bits, 2)
        d0, d1 = _cleared(d0, bits, 3), _cleared(d1, bits, 3)
    low = concatenate(
        concatenate(_rounded(a0, inverse, 0), _rounded(b0, inverse, 1)),
        concatenate(_rounded(c0, inverse, 2), _rounded(d0, inverse, 3)),
    )
    high = concatenate(
        concatenate(_rounded(a1, inverse, 0), _rounded(b1, inverse, 1)),
        concatenate(_rounded(c1, inverse, 2), _rounded(d1, inverse, 3)),
    )
    store(out, low)
    store(out + packed.HIGH_HALF, high)
    low_sum, high_sum = _sums(low), _sums(high)
    both = low_sum + high_sum
    seeds = _seeds(concatenate(low_sum, high_sum), concatenate(both, -both))
    store(out + packed.SEEDS, seeds * -128)
    store(out + packed.SCALE, scale)
    store(out + packed.LOW_SUM, scale * to_float(low_sum))
    store(out + packed.HIGH_SUM, scale * to_float(high_sum))
    store(out + packed.SUM, scale * to_float(both))


@inline
def load_some(address: int, count: int) -> Vector:
    """Up to 16 float32, zero in the lanes past `count`."""
    if count >= HALF:
        return load(F32x16, address)
    return load_partial(F32x16, address, max(count, 0))


@inline
def round_group(
    a0: Vector, a1: Vector, b0: Vector, b1: Vector, c0: Vector, c1: Vector, d0: Vector, d1: Vector, out: int
) -> None:
    """Round a group to bfloat16 at the address `out`; the arguments are as of `quantize_group`."""
    store(out, concatenate(f32_to_bf16(a0), f32_to_bf16(a1)))
    store(out + 64, concatenate(f32_to_bf16(b0), f32_to_bf16(b1)))
    store(out + 128, concatenate(f32_to_bf16(c0), f32_to_bf16(c1)))
    store(out + 192, concatenate(f32_to_bf16(d0), f32_to_bf16(d1)))


def make_pack_group(layout: str) -> Callable[..., Any]:
    """The inline function that packs a group in one of `packed.LAYOUTS`."""
    return {"q8_1": quantize_group, "bf16": round_group}[layout]


def make_quantize(layout: str) -> Callable[..., None]:
    """float32 `x` [rows, k] -> `out`, packed rows of `packed_bytes(k)` bytes; the groups are shared out."""
    pack_group = make_pack_group(layout)

    def quantize(ith: Int, nth: Int, x: Address, out: Address, k: Int, rows: Dim) -> None:
        groups = (k + packed.GROUP - 1) // packed.GROUP
        begin, end = share(ith, nth, rows * groups)
        for unit in range(begin, end):
            row = unit // groups
            first = (unit - row * groups) * packed.GROUP
            at = x + (row * k + first) * 4
            left = k - first
            pack_group(
                load_some(at, left),
                load_some(at + 64, left - 16),
                load_some(at + 128, left - 32),
                load_some(at + 192, left - 48),
                load_some(at + 256, left - 64),
                load_some(at + 320, left - 80),
                load_some(at + 384, left - 96),
                load_some(at + 448, left - 112),
                out + unit * packed.GROUP_BYTES,
            )

    return quantize
