"""The factor of a query that grows with its position. Knows positions alone."""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.kernels.share import share
from graphml_cpu.simd import F32, extract, f32, load_i32, log, splat, store_f32


def make_position_scale() -> Callable[..., None]:
    """out[t] = 1 + factor * ln(1 + (positions[t] + offset) // step), float32; positions int32 [rows]."""

    def position_scale(
        ith: Int, nth: Int, positions: Address, out: Address, factor: Float, step: Int, offset: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            steps = f32(1 + (load_i32(positions + row * 4) + offset) // step)
            store_f32(out + row * 4, f32(1.0) + factor * extract(log(splat(F32, steps)), 0))

    return position_scale
