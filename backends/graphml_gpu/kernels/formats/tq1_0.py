"""TQ1_0: 32 and 16 bytes of five base-3 digits t, 4 bytes of four, then d; x = d (t - 1)."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import in_order, word
from graphml_gpu.language import Read, Vector, f32, f32x4, function, half_at, select, u32


@function
def power(digit: u32) -> u32:
    """3 to the power of a digit's place, 0 to 4."""
    return select(digit == 4, 81, (0x1B090301 >> (8 * digit)) & 255)


@function
def digit_of(packed: u32, moved: u32) -> f32:
    """t - 1 of a byte: multiplied by `moved`, 3 to the power of the digit's place, that digit is on top."""
    return f32((((packed * moved) & 255) * 3) >> 8) - 1.0


@function
def digits4(packed: u32, moved: u32) -> Vector[f32]:
    """One digit of each of four bytes."""
    return f32x4(
        digit_of(packed & 255, moved),
        digit_of((packed >> 8) & 255, moved),
        digit_of((packed >> 16) & 255, moved),
        digit_of(packed >> 24, moved),
    )


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Sixteen bytes' digits of one place; of the last unit four bytes' digits of four places."""
    d = half_at(w, at + 52)
    last = part == 15
    digit = select(part < 10, part >> 1, select(last, 0, part - 10))
    first = at + select(part < 10, 16 * (part & 1), select(last, 48, 32))
    step, next_digit = select(last, u32(0), u32(4)), select(last, u32(1), u32(0))
    return (
        digits4(word(w, first, ALIGN), power(digit)) * d,
        digits4(word(w, first + step, ALIGN), power(digit + next_digit)) * d,
        digits4(word(w, first + 2 * step, ALIGN), power(digit + 2 * next_digit)) * d,
        digits4(word(w, first + 3 * step, ALIGN), power(digit + 3 * next_digit)) * d,
    )


TQ1_0 = GpuFormatReader(256, 54, unpack, in_order)
