"""Vector types by name: what kernels give to operations that make vectors (`load(F32, address)`)."""

from __future__ import annotations

from graphml_cpu.frontend.operators import splat_value
from graphml_cpu.frontend.types import VectorType

__all__ = ["VectorType", "splat_value", "vector"]


def vector(element: str, lanes: int) -> VectorType:
    """The vector type of `lanes` elements `"i8" "u8" "i16" "u16" "i32" "u32" "i64" "f16" "f32" "f64"`.

    In a kernel the type itself is a compile-time argument: `load(F32, address)`.
    """
    return VectorType(element, lanes)
