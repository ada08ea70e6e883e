"""What meets what in products of floating-point weights, and how a vector of either is read.

A `kind` of product: `f32`, `f16` and `bf16` weights meet float32 rows, `packed.BF16_PAIRS` are BF16 weights
that meet rows packed to bfloat16, two of them in a lane. Knows vectors; nothing of rows, panels or sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector
from graphml_cpu.packed import BF16_PAIRS
from graphml_cpu.simd import (
    F16,
    F32,
    I32,
    WIDTH,
    bf16_to_f32,
    bitcast,
    convert,
    dot2_bf16,
    fma,
    load,
    load_partial,
    vector,
)

_U16 = vector("u16", WIDTH)
_U16_PAIRS = vector("u16", 2 * WIDTH)


@inline
def _load_f32(at: int) -> Vector:
    return load(F32, at)


@inline
def _load_f32_partial(at: int, count: int) -> Vector:
    return load_partial(F32, at, count)


@inline
def _load_f16(at: int) -> Vector:
    return convert(F32, load(F16, at))


@inline
def _load_f16_partial(at: int, count: int) -> Vector:
    return convert(F32, load_partial(F16, at, count))


@inline
def _load_bf16(at: int) -> Vector:
    return bf16_to_f32(load(_U16, at))


@inline
def _load_bf16_partial(at: int, count: int) -> Vector:
    return bf16_to_f32(load_partial(_U16, at, count))


@inline
def _load_pairs(at: int) -> Vector:
    return load(I32, at)


@inline
def _load_pairs_partial(at: int, count: int) -> Vector:
    return bitcast(I32, load_partial(_U16_PAIRS, at, count))


@inline
def _add_products(weights: Vector, x: Vector, total: Vector) -> Vector:
    return fma(weights, x, total)


@inline
def _add_pairs(weights: Vector, x: Vector, total: Vector) -> Vector:
    return dot2_bf16(total, weights, x)


@dataclass(frozen=True)
class Terms:
    """How weights of a kind are read and multiplied, as inline functions, a vector at a time.

    load_w(at), load_w_partial(at, count): weights as they are multiplied; load_x and load_x_partial:
    activations; add(weights, x, total): the sums with their products. Counts are of elements, and so many lie
    in a vector; bytes are those of an element. as_stored: weights are multiplied with the bits
    that the file has.
    """

    elements: int
    weight_bytes: int
    x_bytes: int
    load_w: Callable[..., Any]
    load_w_partial: Callable[..., Any]
    load_x: Callable[..., Any] = _load_f32
    load_x_partial: Callable[..., Any] = _load_f32_partial
    add: Callable[..., Any] = _add_products
    as_stored: bool = False


TERMS = {
    "f32": Terms(WIDTH, 4, 4, _load_f32, _load_f32_partial, as_stored=True),
    "f16": Terms(WIDTH, 2, 4, _load_f16, _load_f16_partial),
    "bf16": Terms(WIDTH, 2, 4, _load_bf16, _load_bf16_partial),
    BF16_PAIRS: Terms(
        2 * WIDTH,
        2,
        2,
        _load_pairs,
        _load_pairs_partial,
        load_x=_load_pairs,
        load_x_partial=_load_pairs_partial,
        add=_add_pairs,
        as_stored=True,
    ),
}
