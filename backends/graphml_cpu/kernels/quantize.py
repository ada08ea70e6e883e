"""Activations -> the packed int8 rows that meet quantised weights (`graphml_cpu.packed` draws the layout).

Knows that layout; knows nothing of the weights.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu import packed
from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, Vector, share
from graphml_cpu.simd import (
    absolute,
    any_lane,
    bitcast,
    convert,
    f32,
    load,
    load_partial,
    max_lanes,
    maximum,
    store,
    store_f32,
    store_i32,
    sum_lanes,
    vector,
    zero,
)

_BLOCK_BYTES = packed.BLOCK * 4
_HALF = packed.BLOCK // 2
F32x16 = vector("f32", 16)
I32x16 = vector("i32", 16)
I8x16 = vector("i8", 16)
# Added to a small number, it leaves the nearest integer (ties to even) in the low bits of the sum.
_ROUNDER = 1.5 * 2.0**23
_ROUNDER_BITS = 0x4B400000


@inline
def quantize_block(low: Vector, high: Vector, out: int, block: int) -> None:
    """Quantise one block, given as its two halves, into place `block` (0 to 3) of the group at `out`."""
    largest = max_lanes(maximum(absolute(low), absolute(high)))
    # inf - inf and NaN - NaN are not 0: what is not finite must not be rounded to an integer.
    usable = not any_lane((low - low) + (high - high) != 0.0)
    scale: Number = f32(0.0)
    inverse: Number = f32(0.0)
    if usable:
        if largest > f32(0.0):
            scale = largest / f32(127.0)
            # For a subnormal largest the inverse is infinite: such a block counts as zero.
            inverse = f32(127.0) / largest
            if inverse > f32(3.0e38):
                scale = f32(0.0)
                inverse = f32(0.0)
    else:
        scale = f32(float("nan"))
        low = zero(F32x16)
        high = zero(F32x16)
    q_low = bitcast(I32x16, low * inverse + _ROUNDER) - _ROUNDER_BITS
    q_high = bitcast(I32x16, high * inverse + _ROUNDER) - _ROUNDER_BITS
    store(out + block * _HALF, convert(I8x16, q_low))
    store(out + packed.HIGH_HALF + block * _HALF, convert(I8x16, q_high))
    total = sum_lanes(q_low + q_high)
    store_f32(out + packed.SCALE + block * 4, scale)
    store_f32(out + packed.SCALED_SUM + block * 4, scale * f32(total))
    store_i32(out + packed.SEED_8 + block * 4, -8 * total)
    store_i32(out + packed.SEED_128 + block * 4, -128 * total)


def make_quantize_q8() -> Callable[..., None]:
    """float32 `x` [rows, k] -> `out`, packed rows of `packed_bytes(k)` bytes; the groups are shared out."""

    def quantize_q8(ith: Int, nth: Int, x: Address, out: Address, k: Int, rows: Dim) -> None:
        groups = (k + packed.GROUP - 1) // packed.GROUP
        begin, end = share(ith, nth, rows * groups)
        for unit in range(begin, end):
            row = unit // groups
            first = (unit - row * groups) * packed.GROUP
            source = x + (row * k + first) * 4
            left = min(k - first, packed.GROUP)
            for block in range(4):
                at = source + block * _BLOCK_BYTES
                here = left - block * packed.BLOCK
                if here >= packed.BLOCK:
                    quantize_block(
                        load(F32x16, at), load(F32x16, at + 64), out + unit * packed.GROUP_BYTES, block
                    )
                else:
                    low = load_partial(F32x16, at, max(here, 0))
                    high = load_partial(F32x16, at + 64, max(here - _HALF, 0))
                    quantize_block(low, high, out + unit * packed.GROUP_BYTES, block)

    return quantize_q8
