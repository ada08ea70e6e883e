"""How the elements of caches are read: f32, f16, bf16 and formats of 32 elements a block, from words.

A load gives four neighbours of a row. Halves are unpacked from two words by a function of their own: kernels
that fetch more than four at once call it later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from graphml_gpu.kernels.formats._words import bytes4, low4, spread4, unpack_bf16, unpack_f16
from graphml_gpu.kernels.formats.iq4_nl import levels4
from graphml_gpu.language import (
    Vector,
    bf16_low,
    f32,
    f32x4,
    function,
    half_at,
    short_at,
    signed_byte,
    u32,
    u32x2,
    unpack_half2,
    word_at,
)

CacheLoad = Callable[[Any, int, int, int], Vector[float]]
"""LOAD(cache, row, four, WIDTH): elements 4 * four to 4 * four + 3 of a row; 0 behind its WIDTH."""
ELEMENTS: tuple[Any, ...] = (f32x4, f32, u32x2, u32)
"""What caches are bound as arrays of."""
PAIRS = tuple(itertools.product(ELEMENTS, repeat=2))
"""What keys and values are bound as arrays of."""


@function
def load_f32(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[f32x4]; WIDTH is a multiple of 4."""
    four_elements: Vector[float] = cache[row * (WIDTH // 4) + four]
    return four_elements


@function
def load_f32_uneven(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[f32], any WIDTH."""
    at, left = row * WIDTH + four * 4, WIDTH - four * 4
    return f32x4(
        cache[at],
        cache[at + 1] if left > 1 else 0.0,
        cache[at + 2] if left > 2 else 0.0,
        cache[at + 3] if left > 3 else 0.0,
    )


@function
def load_f16(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32x2]; WIDTH is a multiple of 4."""
    words = cache[row * (WIDTH // 4) + four]
    return unpack_f16(words.x, words.y)


@function
def load_f16_uneven(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32], any WIDTH."""
    at, left = row * WIDTH + four * 4, WIDTH - four * 4
    return f32x4(
        half_at(cache, at * 2),
        half_at(cache, at * 2 + 2) if left > 1 else 0.0,
        half_at(cache, at * 2 + 4) if left > 2 else 0.0,
        half_at(cache, at * 2 + 6) if left > 3 else 0.0,
    )


@function
def load_bf16(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32x2]; WIDTH is a multiple of 4."""
    words = cache[row * (WIDTH // 4) + four]
    return unpack_bf16(words.x, words.y)


@function
def load_bf16_uneven(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32], any WIDTH."""
    at, left = row * WIDTH + four * 4, WIDTH - four * 4
    return f32x4(
        bf16_low(short_at(cache, at * 2)),
        bf16_low(short_at(cache, at * 2 + 2)) if left > 1 else 0.0,
        bf16_low(short_at(cache, at * 2 + 4)) if left > 2 else 0.0,
        bf16_low(short_at(cache, at * 2 + 6)) if left > 3 else 0.0,
    )


@function
def load_q8_0(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32]; WIDTH is a multiple of 32."""
    start = (row * (WIDTH // 32) + four // 8) * 34
    word = word_at(cache, start + 2 + four % 8 * 4)
    numbers = f32x4(
        f32(signed_byte(word, 0)),
        f32(signed_byte(word, 1)),
        f32(signed_byte(word, 2)),
        f32(signed_byte(word, 3)),
    )
    return numbers * half_at(cache, start)


@function
def load_q4_0(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32]; WIDTH is a multiple of 32."""
    start = (row * (WIDTH // 32) + four // 8) * 18
    word = word_at(cache, start + 2 + four % 4 * 4) >> (four % 8 // 4 * 4)
    numbers = f32x4(f32(word & 15), f32((word >> 8) & 15), f32((word >> 16) & 15), f32((word >> 24) & 15))
    return (numbers - 8.0) * half_at(cache, start)


@function
def load_q4_1(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32]; WIDTH is a multiple of 32."""
    start = (row * (WIDTH // 32) + four // 8) * 5
    head = unpack_half2(cache[start])
    word = cache[start + 1 + four % 4] >> (four % 8 // 4 * 4)
    return bytes4(low4(word)) * head.x + head.y


@function
def load_q5_0(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32]; WIDTH is a multiple of 32."""
    start = (row * (WIDTH // 32) + four // 8) * 22
    fifths = word_at(cache, start + 2) >> (four % 8 * 4)
    word = word_at(cache, start + 6 + four % 4 * 4) >> (four % 8 // 4 * 4)
    return (bytes4(low4(word) | (spread4(fifths) << 4)) - 16.0) * half_at(cache, start)


@function
def load_q5_1(cache: Any, row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Of an Array[u32]; WIDTH is a multiple of 32."""
    start = (row * (WIDTH // 32) + four // 8) * 6
    head = unpack_half2(cache[start])
    fifths = cache[start + 1] >> (four % 8 * 4)
    word = cache[start + 2 + four % 4] >> (four % 8 // 4 * 4)
    return bytes4(low4(word) | (spread4(fifths) << 4)) * head.x + head.y


@function
def load_iq4_nl(cache: Any, row: u32, four: u32, WIDTH: int) -> Any:
    """Of an Array[u32]; WIDTH is a multiple of 32."""
    start = (row * (WIDTH // 32) + four // 8) * 18
    word = word_at(cache, start + 2 + four % 4 * 4) >> (four % 8 // 4 * 4)
    return levels4(low4(word)) * half_at(cache, start)
