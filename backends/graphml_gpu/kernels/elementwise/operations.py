"""Elementwise ops: an invocation an element. What they compute is in `formulas`."""

from __future__ import annotations

from collections.abc import Callable

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Write, f32, kernel, u32, unroll


@kernel
def unary(x: Read[f32], out: Write[f32], n: u32, *, FUNCTION: Callable[[f32], f32], GROUP: int = 64) -> None:
    """out = FUNCTION(x), n elements; out may be x."""
    i = element_number()
    if i < n:
        out[i] = FUNCTION(x[i])


@kernel
def with_numbers(
    x: Read[f32], out: Write[f32], n: u32, first: f32, second: f32,
    *, FUNCTION: Callable[[f32, f32, f32], f32], GROUP: int = 64,
) -> None:  # fmt: skip
    """out = FUNCTION(x, first, second), n elements; out may be x."""
    i = element_number()
    if i < n:
        out[i] = FUNCTION(x[i], first, second)


@kernel
def binary(
    a: Read[f32], b: Read[f32], out: Write[f32], n: u32, size_0: u32, size_1: u32, size_2: u32,
    *, FUNCTION: Callable[[f32, f32], f32], KEPT: tuple[bool, ...] = (True,), GROUP: int = 64,
) -> None:  # fmt: skip
    """out = FUNCTION(a, b), n elements of a and out, which may be a; or b, where b is not stretched.

    KEPT: of up to four groups of dimensions, the last first, whether b has them (else it is stretched along
    them). size_0, size_1, size_2: elements of these groups; of the outermost no size is needed.
    """
    i = element_number()
    if i < n:
        sizes = (size_0, size_1, size_2)
        place, rest, stride = u32(0), i, u32(1)
        for group in unroll(len(KEPT)):
            outermost = group == len(KEPT) - 1
            if KEPT[group]:
                place += (rest if outermost else rest % sizes[group]) * stride
            if not outermost:
                if KEPT[group]:
                    stride = stride * sizes[group]
                rest = rest // sizes[group]
        out[i] = FUNCTION(a[i], b[place])
