"""Elementwise operations whose results are of 8 bits, as `int8_rows` says: an invocation four elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.kernels.products.int8_quads import store_quad
from graphml_gpu.language import Read, Write, f32, f32x4, function, kernel, u32


@function
def quad_number(x: Read[f32x4], number: u32, count: u32) -> Any:
    """One quad of a buffer of so many, zeros beyond the last."""
    value = f32x4(0.0)
    if number < count:
        value = x[number]
    return value


@kernel
def unary_int8(
    x: Read[f32x4], out: Write[u32], quads: u32, count: u32,
    *, FUNCTION: Callable[[f32], f32], GROUP: int = 64,
) -> None:  # fmt: skip
    """out = FUNCTION(x). quads: of a row, a multiple of 8; count: of all rows."""
    number = element_number()
    a = quad_number(x, number, count)
    made = f32x4(FUNCTION(a.x), FUNCTION(a.y), FUNCTION(a.z), FUNCTION(a.w))
    store_quad(out, number // quads, number % quads, quads, made, number < count)


@kernel
def binary_int8(
    a: Read[f32x4], b: Read[f32x4], out: Write[u32], quads: u32, count: u32,
    *, FUNCTION: Callable[[f32, f32], f32], GROUP: int = 64,
) -> None:  # fmt: skip
    """out = FUNCTION(a, b), of one shape. quads: of a row, a multiple of 8; count: of all rows."""
    number = element_number()
    x, y = quad_number(a, number, count), quad_number(b, number, count)
    made = f32x4(FUNCTION(x.x, y.x), FUNCTION(x.y, y.y), FUNCTION(x.z, y.z), FUNCTION(x.w, y.w))
    store_quad(out, number // quads, number % quads, quads, made, number < count)
