"""Rows of F32, F16 and BF16 weights times numbers that are no integers, row by row: one token, or a few.

A product is one vector of sums, W of them, to which a row's columns are added in turn, and then the sum over
its lanes: the same bits for one token as for several. The weights are read once, in file order, which is all
that counts while memory sets the pace. What meets what is a `kind` of `float_terms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.products.float_terms import TERMS
from graphml_cpu.kernels.products.outputs import AHEAD, store_output
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import F32, prefetch, sum_lanes, zero


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


def make_four_rows_4(kind: str) -> Callable[..., Any]:
    """An inline function `rows(w0, w1, w2, w3, x0, x1, x2, x3, ahead, k)`: four rows, four tokens.

    Gives for each token the four rows' sums; the numbers are those of `make_row_4`. Four tokens' values may
    be more than the first cache holds: they are read a quarter as often. ahead: bytes from a row's weights
    to those that are fetched meanwhile.
    """
    terms = TERMS[kind]
    load_w, load_x, plus = terms.load_w, terms.load_x, terms.add
    load_w_partial, load_x_partial = terms.load_w_partial, terms.load_x_partial
    count, w_bytes, x_bytes = terms.elements, terms.weight_bytes, terms.x_bytes

    @inline
    def add(weights: Any, x: Vector, sums: Any) -> Any:
        return (
            plus(weights[0], x, sums[0]), plus(weights[1], x, sums[1]),
            plus(weights[2], x, sums[2]), plus(weights[3], x, sums[3]),
        )  # fmt: skip

    @inline
    def rows(
        w0: int, w1: int, w2: int, w3: int, x0: int, x1: int, x2: int, x3: int, ahead: int, k: int
    ) -> Any:
        none = zero(F32), zero(F32), zero(F32), zero(F32)
        a, b, c, d = none, none, none, none
        whole = k - k % count
        for i in range(0, whole, count):
            at, place = i * w_bytes, i * x_bytes
            prefetch(w0 + at + ahead)
            prefetch(w1 + at + ahead)
            prefetch(w2 + at + ahead)
            prefetch(w3 + at + ahead)
            weights = load_w(w0 + at), load_w(w1 + at), load_w(w2 + at), load_w(w3 + at)
            a, b = add(weights, load_x(x0 + place), a), add(weights, load_x(x1 + place), b)
            c, d = add(weights, load_x(x2 + place), c), add(weights, load_x(x3 + place), d)
        left = k - whole
        if left > 0:
            at, place = whole * w_bytes, whole * x_bytes
            weights = (
                load_w_partial(w0 + at, left), load_w_partial(w1 + at, left),
                load_w_partial(w2 + at, left), load_w_partial(w3 + at, left),
            )  # fmt: skip
            a = add(weights, load_x_partial(x0 + place, left), a)
            b = add(weights, load_x_partial(x1 + place, left), b)
            c = add(weights, load_x_partial(x2 + place, left), c)
            d = add(weights, load_x_partial(x3 + place, left), d)
        return a, b, c, d

    return rows


@inline
def _store_four(
    sums: Any, count: int, y: int, residual: int, bias: int, index: int, to: int
) -> None:  # fmt: skip
    """A token's sums of the first `count` of four weight rows, from `index` on, to byte `to` of y."""
    store_output(sum_lanes(sums[0]), y, residual, bias, index, to)
    if count > 1:
        store_output(sum_lanes(sums[1]), y, residual, bias, index + 1, to)
    if count > 2:
        store_output(sum_lanes(sums[2]), y, residual, bias, index + 2, to)
    if count > 3:
        store_output(sum_lanes(sums[3]), y, residual, bias, index + 3, to)


def make_four_rows_1(kind: str) -> Callable[..., Any]:
    """An inline function `rows(w, row_bytes, x, k)`: four rows of weights times one token.

    Each row is one vector of sums, as each token of `make_row_4`, so the numbers are the same; four rows hide
    the latency of the sums.
    """
    terms = TERMS[kind]
    load_w, load_x, add = terms.load_w, terms.load_x, terms.add
    load_w_partial, load_x_partial = terms.load_w_partial, terms.load_x_partial
    count, w_bytes, x_bytes = terms.elements, terms.weight_bytes, terms.x_bytes

    @inline
    def rows(w: int, row_bytes: int, x: int, k: int) -> Any:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        w1, w2, w3, next = w + row_bytes, w + 2 * row_bytes, w + 3 * row_bytes, 4 * row_bytes
        whole = k - k % count
        for i in range(0, whole, count):
            at, values = i * w_bytes, load_x(x + i * x_bytes)
            prefetch(w + next + at)
            prefetch(w1 + next + at)
            prefetch(w2 + next + at)
            prefetch(w3 + next + at)
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


def _make_one_token(kind: str) -> Callable[..., Any]:
    """An inline function `one(begin, end, w, x, y, residual, bias, k)`: weight rows times one token."""
    row_4, four_rows, size = make_row_4(kind), make_four_rows_1(kind), TERMS[kind].weight_bytes

    @inline
    def one(begin: int, end: int, w: int, x: int, y: int, residual: int, bias: int, k: int) -> None:
        for index in range(begin, end - 3, 4):
            a, b, c, d = four_rows(w + index * k * size, k * size, x, k)
            store_output(sum_lanes(a), y, residual, bias, index, 0)
            store_output(sum_lanes(b), y, residual, bias, index + 1, 0)
            store_output(sum_lanes(c), y, residual, bias, index + 2, 0)
            store_output(sum_lanes(d), y, residual, bias, index + 3, 0)
        for index in range(end - (end - begin) % 4, end):
            a, b, c, d = row_4(w + index * k * size, x, x, x, x, k)
            store_output(sum_lanes(a), y, residual, bias, index, 0)

    return one


def make_float_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)`.

    Weight rows begin to end of a product of `kind` times all `rows` rows of activations. The sums of a row do
    not depend on how many there are.
    """
    one, four_rows_4 = _make_one_token(kind), make_four_rows_4(kind)
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
        scratch: int,
    ) -> None:
        if rows == 1:
            one(begin, end, w, x, y, residual, bias, k)
            return
        last, row_bytes = x + (rows - 1) * x_stride, k * size
        for index in range(begin, end, 4):
            # Past the last row of weights or the last token that is multiplied again, and not stored.
            w0, left = w + index * row_bytes, end - index
            w1, w2 = w0 + min(1, left - 1) * row_bytes, w0 + min(2, left - 1) * row_bytes
            w3 = w0 + min(3, left - 1) * row_bytes
            for token in range(0, rows, 4):
                x0, to, tokens = x + token * x_stride, token * y_stride, rows - token
                x1, x2 = min(x0 + x_stride, last), min(x0 + 2 * x_stride, last)
                x3 = min(x0 + 3 * x_stride, last)
                a, b, c, d = four_rows_4(w0, w1, w2, w3, x0, x1, x2, x3, 4 * row_bytes, k)
                _store_four(a, left, y, residual, bias, index, to)
                if tokens > 1:
                    _store_four(b, left, y, residual, bias, index, to + y_stride)
                if tokens > 2:
                    _store_four(c, left, y, residual, bias, index, to + 2 * y_stride)
                if tokens > 3:
                    _store_four(d, left, y, residual, bias, index, to + 3 * y_stride)

    return multiply
