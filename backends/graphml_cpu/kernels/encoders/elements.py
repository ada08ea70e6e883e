"""float32 -> float16 and bfloat16, element by element. Infinities and NaN stay what they are."""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.simd import (
    convert,
    f32_to_bf16,
    load,
    load_partial,
    store,
    store_partial,
    vector,
)

_LANES = 32
_F32, _F16 = vector("f32", _LANES), vector("f16", _LANES)
_PART = 4096  # elements that a thread takes at least


def make_encode_elements(format: str) -> Callable[..., None]:
    """out, n elements of "f16" or "bf16", of x, float32."""
    is_half = format == "f16"

    @inline
    def encoded(x: Vector) -> Vector:
        return convert(_F16, x) if is_half else f32_to_bf16(x)

    def encode_elements(ith: Int, nth: Int, x: Address, out: Address, n: Int) -> None:
        begin, end = share(ith, nth, (n + _PART - 1) // _PART)
        end = min(end * _PART, n)
        whole = end - (end - begin * _PART) % _LANES
        for i in range(begin * _PART, whole, _LANES):
            store(out + i * 2, encoded(load(_F32, x + i * 4)))
        if whole < end:
            left = end - whole
            store_partial(out + whole * 2, encoded(load_partial(_F32, x + whole * 4, left)), left)

    return encode_elements
