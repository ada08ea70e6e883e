"""How the elements of caches are stored and read: f32, f16, bf16, q8_0 and q4_0, all as words.

A store writes whole words: a unit is as many elements as fill some. A load gives four neighbours of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_gpu.language import (
    Array,
    Vector,
    bf16_high,
    bf16_low,
    bitcast,
    clamp,
    f32,
    f32x2,
    f32x4,
    function,
    half_at,
    i32,
    isinf,
    isnan,
    pack_half2,
    private_array,
    select,
    short_at,
    signed_byte,
    trunc,
    u32,
    unpack_half2,
    word_at,
)

CacheStore = Callable[[Any, int, Any], None]
"""STORE(cache, unit, values): write a unit's elements."""
CacheLoad = Callable[[Any, int, int, int], Vector[float]]
"""LOAD(cache, row, four, WIDTH): elements 4 * four to 4 * four + 3 of a row; 0 behind its WIDTH."""

_BELOW_HALF = 0.49999997


@function
def store_f32(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """One element."""
    cache[unit] = bitcast(u32, values[0])


@function
def store_f16(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two elements, rounded to nearest even."""
    cache[unit] = pack_half2(f32x2(values[0], values[1]))


@function
def to_bf16(x: f32) -> u32:
    """Rounded to nearest even; a NaN stays one."""
    bits = bitcast(u32, x)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return select(isnan(x), (bits >> 16) | 0x40, rounded)


@function
def store_bf16(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two elements, rounded to nearest even."""
    cache[unit] = to_bf16(values[0]) | (to_bf16(values[1]) << 16)


@function
def _inverse(scale: f32) -> f32:
    """1 / scale; 0 where that is not finite."""
    inverted = 1.0 / scale
    return f32(0.0) if isnan(inverted) or isinf(inverted) else inverted


@function
def _put(words: Array[u32], at: u32, byte: u32) -> None:
    words[at >> 2] = words[at >> 2] | (byte << ((at & 3) * 8))


@function
def _put_half(words: Array[u32], at: u32, x: f32) -> None:
    half = pack_half2(f32x2(x, 0.0)) & 0xFFFF
    words[at >> 2] = words[at >> 2] | (half << ((at & 3) * 8))


@function
def store_q8_0(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two blocks of 32: a half d, then bytes q; x = d q. The largest magnitude becomes 127."""
    words = private_array(u32, 17)
    for i in range(17):
        words[i] = 0
    for block in range(2):
        most = f32(0.0)
        for i in range(32):
            most = max(most, abs(values[block * 32 + i]))
        scale = most / 127.0
        inverse = _inverse(scale)
        _put_half(words, block * 34, scale)
        for i in range(32):
            value = values[block * 32 + i] * inverse
            whole = i32(trunc(value + (_BELOW_HALF if value >= 0.0 else -_BELOW_HALF)))
            _put(words, block * 34 + 2 + i, bitcast(u32, whole) & 255)
    for i in range(17):
        cache[unit * 17 + i] = words[i]


@function
def store_q4_0(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two blocks of 32: a half d, then nibbles q; x = d (q - 8). The largest magnitude becomes -8."""
    words = private_array(u32, 9)
    for i in range(9):
        words[i] = 0
    for block in range(2):
        most = f32(0.0)
        for i in range(32):
            value = values[block * 32 + i]
            if abs(value) > abs(most):
                most = value
        scale = most / -8.0
        inverse = _inverse(scale)
        _put_half(words, block * 18, scale)
        for i in range(16):
            low = u32(clamp(trunc(values[block * 32 + i] * inverse + 8.5), 0.0, 15.0))
            high = u32(clamp(trunc(values[block * 32 + i + 16] * inverse + 8.5), 0.0, 15.0))
            _put(words, block * 18 + 2 + i, low | (high << 4))
    for i in range(9):
        cache[unit * 9 + i] = words[i]


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
    low, high = unpack_half2(words.x), unpack_half2(words.y)
    return f32x4(low.x, low.y, high.x, high.y)


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
    return f32x4(bf16_low(words.x), bf16_high(words.x), bf16_low(words.y), bf16_high(words.y))


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


@dataclass(frozen=True)
class CacheType:
    """How kernels deal with one dtype of caches.

    unit: elements that `store` writes at once. vector: words of four elements where rows are a multiple of
    that; load, uneven: of such rows and of others (None: there are none).
    """

    unit: int
    store: CacheStore
    vector: str
    load: CacheLoad
    uneven: CacheLoad | None = None


CACHE_TYPES = {
    "f32": CacheType(1, store_f32, "f32x4", load_f32, load_f32_uneven),
    "f16": CacheType(2, store_f16, "u32x2", load_f16, load_f16_uneven),
    "bf16": CacheType(2, store_bf16, "u32x2", load_bf16, load_bf16_uneven),
    "q8_0": CacheType(64, store_q8_0, "u32", load_q8_0),
    "q4_0": CacheType(64, store_q4_0, "u32", load_q4_0),
}
