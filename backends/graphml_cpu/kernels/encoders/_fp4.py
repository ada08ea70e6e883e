"""The nearest 4-bit floats (E2M1): MXFP4 and NVFP4 have them."""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, LANES, U8
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import absolute, load, select, splat, store, zero


@inline
def _nearest(x: Vector, scale: Vector) -> Vector:
    """Codes, as bytes, of x / scale as ggml counts them, twice the floats; of two as near the smaller."""
    size, code = absolute(x), zero(U8)
    code = select(size > scale * 0.5, splat(U8, 1), code)
    code = select(size > scale * 1.5, splat(U8, 2), code)
    code = select(size > scale * 2.5, splat(U8, 3), code)
    code = select(size > scale * 3.5, splat(U8, 4), code)
    code = select(size > scale * 5.0, splat(U8, 5), code)
    code = select(size > scale * 7.0, splat(U8, 6), code)
    code = select(size > scale * 10.0, splat(U8, 7), code)
    return select((x < 0.0) & (size > scale * 0.5), code | 8, code)


@inline
def store_codes(x: int, scale: Vector, half: int, out: int) -> None:
    """2 * half elements in so many bytes, the first half in their low nibbles."""
    for i in range(half):
        low = _nearest(load(F32, x + i * F32_BYTES), scale)
        high = _nearest(load(F32, x + (half + i) * F32_BYTES), scale)
        store(out + i * LANES, low | (high << 4))
