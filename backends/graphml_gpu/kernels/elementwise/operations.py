"""Elementwise ops: an invocation an element. What they compute is in `formulas`."""

from __future__ import annotations

from collections.abc import Callable

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Write, clamp, f32, function, i32, isnan, kernel, select, u32, unroll


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


@function
def place_of(i: u32, sizes: tuple[u32, ...], KEPT: tuple[bool, ...]) -> u32:
    """The element of a broadcast operand that meets element i; see `binary`."""
    place, rest, stride = u32(0), i, u32(1)
    for group in unroll(len(KEPT)):
        outermost = group == len(KEPT) - 1
        if KEPT[group]:
            place += (rest if outermost else rest % sizes[group]) * stride
        if not outermost:
            if KEPT[group]:
                stride = stride * sizes[group]
            rest = rest // sizes[group]
    return place


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
        out[i] = FUNCTION(a[i], b[place_of(i, (size_0, size_1, size_2), KEPT)])


@kernel
def choose(
    mask: Read[u32], a: Read[f32], b: Read[f32], out: Write[f32], n: u32,
    size_0: u32, size_1: u32, size_2: u32,
    *, MASK_KEPT: tuple[bool, ...] = (True,), B_KEPT: tuple[bool, ...] = (True,), GROUP: int = 64,
) -> None:  # fmt: skip
    """out = a where the mask is not 0, else b; out may be a. Groups of dimensions as in `binary`.

    The mask is looked at in bits, of which a compiler does not think what it may of floats: NaN is not 0.
    """
    i = element_number()
    if i < n:
        sizes = (size_0, size_1, size_2)
        chosen = (mask[place_of(i, sizes, MASK_KEPT)] & u32(0x7FFFFFFF)) != u32(0)
        value = a[i]
        if not chosen:
            value = b[place_of(i, sizes, B_KEPT)]
        out[i] = value


@kernel
def to_f32(x: Read[i32], out: Write[f32], n: u32, *, GROUP: int = 64) -> None:
    """out = x as float32, n elements."""
    i = element_number()
    if i < n:
        out[i] = f32(x[i])


@kernel
def to_i32(x: Read[f32], out: Write[i32], n: u32, *, GROUP: int = 64) -> None:
    """out = x as int32 toward zero, the ends of the range beyond it, 0 for NaN; n elements."""
    i = element_number()
    if i < n:
        number = select(isnan(x[i]), 0.0, x[i])
        whole = i32(clamp(number, -2147483648.0, 2147483520.0))
        out[i] = select(number >= 2147483648.0, i32(2147483647), whole)
