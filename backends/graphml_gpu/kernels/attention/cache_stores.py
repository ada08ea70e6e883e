"""How the elements of caches are stored: f32, f16, bf16 and formats of 32 elements a block, as whole words.

A store writes a unit: as many elements as fill whole words. The bytes are those of `graphml_quant`'s encoders
where a device divides as they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_quant.iq4_nl import LEVELS, MIDPOINTS, SMALLEST

from graphml_gpu.kernels.formats.iq4_nl import level
from graphml_gpu.language import (
    Array,
    bitcast,
    clamp,
    f32,
    f32x2,
    function,
    i32,
    isinf,
    isnan,
    pack_half2,
    private_array,
    select,
    table,
    trunc,
    u32,
)

CacheStore = Callable[[Any, int, Any], None]
"""STORE(cache, unit, values): write a unit's elements."""

_BELOW_HALF = 0.49999997
_FIRST_LEVEL, _SMALLEST = float(LEVELS[0]), float(SMALLEST)
_MIDPOINTS = tuple(map(float, MIDPOINTS))


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
def _clear(words: Array[u32], COUNT: int) -> None:
    for i in range(COUNT):
        words[i] = 0


@function
def _write(cache: Array[u32], unit: u32, words: Array[u32], COUNT: int) -> None:
    for i in range(COUNT):
        cache[unit * COUNT + i] = words[i]


@function
def _largest(values: Array[f32], first: u32) -> f32:
    """Of 32 values that of largest magnitude, with its sign."""
    most = f32(0.0)
    for i in range(32):
        value = values[first + i]
        if abs(value) > abs(most):
            most = value
    return most


@function
def _ends(values: Array[f32], first: u32) -> tuple[f32, f32]:
    """The smallest and the largest of 32 values."""
    least, most = values[first], values[first]
    for i in range(1, 32):
        value = values[first + i]
        if value < least:
            least = value
        if value > most:
            most = value
    return least, most


@function
def _number(value: f32, least: f32, inverse: f32, half: f32, MOST: int) -> u32:
    return u32(clamp(trunc((value - least) * inverse + half), 0.0, f32(MOST)))


@function
def _put_numbers(
    words: Array[u32], at: u32, values: Array[f32], first: u32, least: f32, inverse: f32, half: f32, MOST: int
) -> None:
    """Numbers of 32 values, their low four bits in 16 bytes; of 0 to 31 the fifth bits before these, in 4.

    A number is (value - least) * inverse + half without what is behind the point. The first of these bytes is
    `at`.
    """
    nibbles = at + (4 if MOST > 15 else 0)
    fifths = u32(0)
    for i in range(16):
        low = _number(values[first + i], least, inverse, half, MOST)
        high = _number(values[first + i + 16], least, inverse, half, MOST)
        _put(words, nibbles + i, (low & 15) | ((high & 15) << 4))
        fifths = fifths | ((low >> 4) << i) | ((high >> 4) << (i + 16))
    if MOST > 15:
        for i in range(4):
            _put(words, at + i, (fifths >> (8 * i)) & 255)


@function
def store_q8_0(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two blocks of 32: a half d, then bytes q; x = d q. The largest magnitude becomes 127."""
    words = private_array(u32, 17)
    _clear(words, 17)
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
    _write(cache, unit, words, 17)


@function
def store_q4_0(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two blocks of 32: a half d, then nibbles q; x = d (q - 8). The largest magnitude becomes -8."""
    words = private_array(u32, 9)
    _clear(words, 9)
    for block in range(2):
        scale = _largest(values, block * 32) / -8.0
        _put_half(words, block * 18, scale)
        _put_numbers(words, block * 18 + 2, values, block * 32, 0.0, _inverse(scale), 8.5, 15)
    _write(cache, unit, words, 9)


@function
def store_q5_0(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two blocks of 32: a half d, then numbers q of five bits; x = d (q - 16). The largest becomes -16."""
    words = private_array(u32, 11)
    _clear(words, 11)
    for block in range(2):
        scale = _largest(values, block * 32) / -16.0
        _put_half(words, block * 22, scale)
        _put_numbers(words, block * 22 + 2, values, block * 32, 0.0, _inverse(scale), 16.5, 31)
    _write(cache, unit, words, 11)


@function
def store_q4_1(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """A block of 32: halves d and m, then nibbles q; x = d q + m."""
    words = private_array(u32, 5)
    _clear(words, 5)
    least, most = _ends(values, 0)
    scale = (most - least) / 15.0
    words[0] = pack_half2(f32x2(scale, least))
    _put_numbers(words, 4, values, 0, least, _inverse(scale), 0.5, 15)
    _write(cache, unit, words, 5)


@function
def store_q5_1(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """A block of 32: halves d and m, then numbers q of five bits; x = d q + m."""
    words = private_array(u32, 6)
    _clear(words, 6)
    least, most = _ends(values, 0)
    scale = (most - least) / 31.0
    words[0] = pack_half2(f32x2(scale, least))
    _put_numbers(words, 4, values, 0, least, _inverse(scale), 0.5, 31)
    _write(cache, unit, words, 6)


@function
def _nearest_level(value: f32) -> u32:
    """The number of the level next to a value: how many midpoints it has reached."""
    midpoints = table(f32, _MIDPOINTS)
    index = u32(0)
    for i in range(len(_MIDPOINTS)):
        index += select(value >= midpoints[i], u32(1), u32(0))
    return index


@function
def store_iq4_nl(cache: Array[u32], unit: u32, values: Array[f32]) -> None:
    """Two blocks of 32: a half d, then indices i of four bits; x = d LEVELS[i].

    The largest magnitude gets the first level, then d is that of the least error, weighed by squares.
    """
    words = private_array(u32, 9)
    _clear(words, 9)
    for block in range(2):
        most = _largest(values, block * 32)
        inverse = f32(0.0)
        if abs(most) >= _SMALLEST:
            inverse = _inverse(most / _FIRST_LEVEL)
        with_values, with_levels = f32(0.0), f32(0.0)
        for i in range(32):
            value = values[block * 32 + i]
            index = _nearest_level(value * inverse)
            near = level(index)
            weighed = value * value * near
            with_values += weighed * value
            with_levels += weighed * near
            _put(words, block * 18 + 2 + i % 16, index << (i // 16 * 4))
        if inverse != 0.0 and with_levels > 0.0:
            _put_half(words, block * 18, with_values / with_levels)
    _write(cache, unit, words, 9)
