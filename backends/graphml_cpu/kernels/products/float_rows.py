"""Rows of F32, F16 and BF16 weights times numbers that are no integers, row by row: one token, or a few.

A `kind` of product says what meets what: `f32`, `f16` and `bf16` weights meet float32 rows,
`packed.BF16_PAIRS` are BF16 weights that meet rows packed to bfloat16, two of them in a lane. The weights are
read once, in file order, which is all that counts while memory sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.products.outputs import AHEAD, store_output
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
    prefetch,
    sum_lanes,
    vector,
    zero,
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
    in a vector; bytes are those of an element. ahead: how many bytes before their use the weights of a single
    token are fetched; 0: the processor fetches better by itself, which it does where each load is multiplied
    at once (decision 14 has the figures). as_stored: weights are multiplied with the bits that the file has.
    """

    elements: int
    weight_bytes: int
    x_bytes: int
    load_w: Callable[..., Any]
    load_w_partial: Callable[..., Any]
    ahead: int = 0
    load_x: Callable[..., Any] = _load_f32
    load_x_partial: Callable[..., Any] = _load_f32_partial
    add: Callable[..., Any] = _add_products
    as_stored: bool = False


TERMS = {
    "f32": Terms(WIDTH, 4, 4, _load_f32, _load_f32_partial, as_stored=True),
    "f16": Terms(WIDTH, 2, 4, _load_f16, _load_f16_partial, ahead=4096),
    "bf16": Terms(WIDTH, 2, 4, _load_bf16, _load_bf16_partial, ahead=4096),
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


def make_row_1(kind: str) -> Callable[..., Any]:
    """An inline function `row(w, x, k)`: the dot product with one token, in four sums to hide the latency."""
    terms = TERMS[kind]
    load_w, load_x, add = terms.load_w, terms.load_x, terms.add
    load_w_partial, load_x_partial = terms.load_w_partial, terms.load_x_partial
    count, w_bytes, x_bytes = terms.elements, terms.weight_bytes, terms.x_bytes
    w_step, x_step, ahead = count * w_bytes, count * x_bytes, terms.ahead

    @inline
    def row(w: int, x: int, k: int) -> Vector:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        for _ in range(k // (4 * count)):
            if ahead > 0:
                prefetch(w + ahead)
            if ahead > 0 and 4 * w_step > 64:
                prefetch(w + ahead + 64)
            a = add(load_w(w), load_x(x), a)
            b = add(load_w(w + w_step), load_x(x + x_step), b)
            c = add(load_w(w + 2 * w_step), load_x(x + 2 * x_step), c)
            d = add(load_w(w + 3 * w_step), load_x(x + 3 * x_step), d)
            w += 4 * w_step
            x += 4 * x_step
        for i in range(0, k % (4 * count), count):
            left = k % (4 * count) - i
            a = add(load_w_partial(w + i * w_bytes, left), load_x_partial(x + i * x_bytes, left), a)
        return (a + b) + (c + d)

    return row


def make_row_4(kind: str) -> Callable[..., Any]:
    """An inline function `row(w, x0, x1, x2, x3, k)`: the dot products with four tokens."""
    terms = TERMS[kind]
    load_w, load_x, add = terms.load_w, terms.load_x, terms.add
    load_w_partial, load_x_partial = terms.load_w_partial, terms.load_x_partial
    count, w_bytes, x_bytes = terms.elements, terms.weight_bytes, terms.x_bytes

    @inline
    def row(w: int, x0: int, x1: int, x2: int, x3: int, k: int) -> Any:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        whole = k - k % count
        for i in range(0, whole, count):
            prefetch(w + i * w_bytes + AHEAD)
            weights, at = load_w(w + i * w_bytes), i * x_bytes
            a = add(weights, load_x(x0 + at), a)
            b = add(weights, load_x(x1 + at), b)
            c = add(weights, load_x(x2 + at), c)
            d = add(weights, load_x(x3 + at), d)
        left = k - whole
        if left > 0:
            weights, at = load_w_partial(w + whole * w_bytes, left), whole * x_bytes
            a = add(weights, load_x_partial(x0 + at, left), a)
            b = add(weights, load_x_partial(x1 + at, left), b)
            c = add(weights, load_x_partial(x2 + at, left), c)
            d = add(weights, load_x_partial(x3 + at, left), d)
        return a, b, c, d

    return row


def make_two_rows_4(kind: str) -> Callable[..., Any]:
    """An inline function `rows(w, v, x0, x1, x2, x3, k)`: as `make_row_4` for two rows of weights, w and v.

    The numbers are the same. Four tokens' values may be more than the first cache holds: they are read half
    as often.
    """
    terms = TERMS[kind]
    load_w, load_x, add = terms.load_w, terms.load_x, terms.add
    load_w_partial, load_x_partial = terms.load_w_partial, terms.load_x_partial
    count, w_bytes, x_bytes = terms.elements, terms.weight_bytes, terms.x_bytes

    @inline
    def rows(w: int, v: int, x0: int, x1: int, x2: int, x3: int, k: int) -> Any:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        e, f, g, h = zero(F32), zero(F32), zero(F32), zero(F32)
        whole = k - k % count
        for i in range(0, whole, count):
            prefetch(w + i * w_bytes + AHEAD)
            prefetch(v + i * w_bytes + AHEAD)
            first, second, at = load_w(w + i * w_bytes), load_w(v + i * w_bytes), i * x_bytes
            x = load_x(x0 + at)
            a, e = add(first, x, a), add(second, x, e)
            x = load_x(x1 + at)
            b, f = add(first, x, b), add(second, x, f)
            x = load_x(x2 + at)
            c, g = add(first, x, c), add(second, x, g)
            x = load_x(x3 + at)
            d, h = add(first, x, d), add(second, x, h)
        left = k - whole
        if left > 0:
            first, at = load_w_partial(w + whole * w_bytes, left), whole * x_bytes
            second = load_w_partial(v + whole * w_bytes, left)
            x = load_x_partial(x0 + at, left)
            a, e = add(first, x, a), add(second, x, e)
            x = load_x_partial(x1 + at, left)
            b, f = add(first, x, b), add(second, x, f)
            x = load_x_partial(x2 + at, left)
            c, g = add(first, x, c), add(second, x, g)
            x = load_x_partial(x3 + at, left)
            d, h = add(first, x, d), add(second, x, h)
        return a, b, c, d, e, f, g, h

    return rows


@inline
def _store_four(
    a: Vector, b: Vector, c: Vector, d: Vector, count: int, y: int, residual: int, bias: int, index: int,
    to: int, y_stride: int,
) -> None:  # fmt: skip
    """The sums of the first `count` of four tokens, of a weight row, from byte `to` of y on."""
    store_output(sum_lanes(a), y, residual, bias, index, to)
    if count > 1:
        store_output(sum_lanes(b), y, residual, bias, index, to + y_stride)
    if count > 2:
        store_output(sum_lanes(c), y, residual, bias, index, to + 2 * y_stride)
    if count > 3:
        store_output(sum_lanes(d), y, residual, bias, index, to + 3 * y_stride)


def make_four_rows_1(kind: str) -> Callable[..., Any]:
    """An inline function `rows(w, row_bytes, x, k)`: four rows of weights times one token.

    A row is one sum of vectors, as each token of `make_row_4` has it, so that the numbers are the same; the
    four hide the latency.
    """
    terms = TERMS[kind]
    load_w, load_x, add = terms.load_w, terms.load_x, terms.add
    load_w_partial, load_x_partial = terms.load_w_partial, terms.load_x_partial
    count, w_bytes, x_bytes = terms.elements, terms.weight_bytes, terms.x_bytes

    @inline
    def rows(w: int, row_bytes: int, x: int, k: int) -> Any:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        w1, w2, w3 = w + row_bytes, w + 2 * row_bytes, w + 3 * row_bytes
        whole = k - k % count
        for i in range(0, whole, count):
            at = i * w_bytes
            values = load_x(x + i * x_bytes)
            a, b = add(load_w(w + at), values, a), add(load_w(w1 + at), values, b)
            c, d = add(load_w(w2 + at), values, c), add(load_w(w3 + at), values, d)
        left = k - whole
        if left > 0:
            at, values = whole * w_bytes, load_x_partial(x + whole * x_bytes, left)
            a = add(load_w_partial(w + at, left), values, a)
            b = add(load_w_partial(w1 + at, left), values, b)
            c = add(load_w_partial(w2 + at, left), values, c)
            d = add(load_w_partial(w3 + at, left), values, d)
        return a, b, c, d

    return rows


def _make_one_token(kind: str, one_order: bool) -> Callable[..., Any]:
    """An inline function `one(begin, end, w, x, y, residual, bias, k)`: weight rows times one token."""
    row_1, row_4, four_rows = make_row_1(kind), make_row_4(kind), make_four_rows_1(kind)
    size = TERMS[kind].weight_bytes

    @inline
    def one(begin: int, end: int, w: int, x: int, y: int, residual: int, bias: int, k: int) -> None:
        for index in range(begin, end):
            total = sum_lanes(row_1(w + index * k * size, x, k))
            store_output(total, y, residual, bias, index, 0)

    @inline
    def one_in_order(begin: int, end: int, w: int, x: int, y: int, residual: int, bias: int, k: int) -> None:
        for index in range(begin, end - 3, 4):
            a, b, c, d = four_rows(w + index * k * size, k * size, x, k)
            store_output(sum_lanes(a), y, residual, bias, index, 0)
            store_output(sum_lanes(b), y, residual, bias, index + 1, 0)
            store_output(sum_lanes(c), y, residual, bias, index + 2, 0)
            store_output(sum_lanes(d), y, residual, bias, index + 3, 0)
        for index in range(end - (end - begin) % 4, end):
            a, b, c, d = row_4(w + index * k * size, x, x, x, x, k)
            store_output(sum_lanes(a), y, residual, bias, index, 0)

    return one_in_order if one_order else one


def make_float_rows(kind: str, one_order: bool = False) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)`.

    Weight rows begin to end of a product of `kind` times all `rows` rows of activations. one_order: a single
    row is added up as each of several is.
    """
    one, row_4, two_rows_4 = _make_one_token(kind, one_order), make_row_4(kind), make_two_rows_4(kind)
    size = TERMS[kind].weight_bytes

    @inline
    def multiply(
        begin: int,
        end: int,
        w: int,
        x: int,
        y: int,
        residual: int,
        bias: int,
        k: int,
        x_stride: int,
        y_stride: int,
        rows: int,
    ) -> None:
        if rows == 1:
            one(begin, end, w, x, y, residual, bias, k)
            return
        last = x + (rows - 1) * x_stride
        together = 2 if rows > 2 else 1
        for index in range(begin, end, together):
            at = w + index * k * size
            for token in range(0, rows, 4):
                # Past the last token the last one is computed again, and not stored.
                x0, to, count = x + token * x_stride, token * y_stride, rows - token
                x1, x2, x3 = (
                    min(x0 + x_stride, last),
                    min(x0 + 2 * x_stride, last),
                    min(x0 + 3 * x_stride, last),
                )
                if index + together > end or together == 1:
                    a, b, c, d = row_4(at, x0, x1, x2, x3, k)
                    _store_four(a, b, c, d, count, y, residual, bias, index, to, y_stride)
                else:
                    a, b, c, d, e, f, g, h = two_rows_4(at, at + k * size, x0, x1, x2, x3, k)
                    _store_four(a, b, c, d, count, y, residual, bias, index, to, y_stride)
                    _store_four(e, f, g, h, count, y, residual, bias, index + 1, to, y_stride)

    return multiply
