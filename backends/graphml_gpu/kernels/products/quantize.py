"""Rows of float32 as rows of 8-bit numbers, for products with quantised weights; an invocation a group of 32."""

from __future__ import annotations

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.kernels.products.int8_rows import store_group
from graphml_gpu.language import Read, Write, f32, kernel, private_array, u32, unroll


@kernel
def quantize(x: Read[f32], out: Write[u32], groups: u32, count: u32, *, GROUP: int = 64) -> None:
    """x [count / groups, groups * 32] as `int8_rows` says; count: groups of 32 in all."""
    number = element_number()
    if number < count:
        values = private_array(f32, 32)
        for i in unroll(32):
            values[i] = x[number * 32 + i]
        store_group(out, number // groups, number % groups, groups, values)
