"""Rows of F32, F16 and BF16 weights times numbers that are no integers, row by row: one token, or a few.

A product is one vector of sums, W of them, to which a row's columns are added in turn, and then the sum over
its lanes: the same bits for one token as for several. The weights are read once, in file order, which is all
that counts while memory sets the pace. What meets what is a `kind` of `float_terms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.products.float_terms import TERMS
from graphml_cpu.kernels.products.outputs import AHEAD, store_output
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import F32, prefetch_near, sum_lanes, zero

# Four rows of weights, one token's values and the sums of six tokens are 29 registers.
_SIX_FIT = target.current().registers == 32


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
            prefetch_near(w + i * w_bytes + AHEAD)
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


def _make_add_to_each(add: Callable[..., Any], load_x: Callable[..., Any], tokens: int) -> Callable[..., Any]:
    """An inline function `(weights, x, at, left, sums) -> sums` of so many tokens.

    weights: a vector of each of four rows; x: the address of each token, of which byte `at` is next; sums: a
    tuple of four for each token; load_x: `(address, left)`.
    """
    if tokens == 0:

        @inline
        def add_to_none(weights: Any, x: Any, at: int, left: int, sums: Any) -> Any:
            return ()

        return add_to_none
    add_before, last = _make_add_to_each(add, load_x, tokens - 1), tokens - 1

    @inline
    def add_to_one(weights: Any, x: Vector, sums: Any) -> Any:
        return (
            add(weights[0], x, sums[0]), add(weights[1], x, sums[1]),
            add(weights[2], x, sums[2]), add(weights[3], x, sums[3]),
        )  # fmt: skip

    @inline
    def add_to_each(weights: Any, x: Any, at: int, left: int, sums: Any) -> Any:
        before = add_before(weights, x, at, left, sums)
        return *before, add_to_one(weights, load_x(x[last] + at, left), sums[last])

    return add_to_each


def _make_zeros(tokens: int) -> Callable[..., Any]:
    """An inline function: four sums for each of so many tokens."""
    if tokens == 0:

        @inline
        def none() -> Any:
            return ()

        return none
    zeros_before = _make_zeros(tokens - 1)

    @inline
    def zeros() -> Any:
        return *zeros_before(), (zero(F32), zero(F32), zero(F32), zero(F32))

    return zeros


def make_four_rows_of(kind: str, tokens: int) -> Callable[..., Any]:
    """An inline function `rows(w0, w1, w2, w3, x, ahead, k)`: four rows times so many tokens.

    x: a tuple of the tokens' addresses. Gives for each token the four rows' sums; the numbers are those of
    `make_row_4`. Several tokens' values may be more than the first cache holds: they are read a quarter as
    often. ahead: bytes from a row's weights to those that are fetched meanwhile.
    """
    terms = TERMS[kind]
    load_w, load_w_partial, load_x_whole = terms.load_w, terms.load_w_partial, terms.load_x
    count, w_bytes, x_bytes = terms.elements, terms.weight_bytes, terms.x_bytes
    zeros = _make_zeros(tokens)

    @inline
    def all_of_x(at: int, left: int) -> Any:
        return load_x_whole(at)

    add, add_partial = (
        _make_add_to_each(terms.add, load, tokens) for load in (all_of_x, terms.load_x_partial)
    )

    @inline
    def rows(w0: int, w1: int, w2: int, w3: int, x: Any, ahead: int, k: int) -> Any:
        sums = zeros()
        whole = k - k % count
        for i in range(0, whole, count):
            at = i * w_bytes
            prefetch_near(w0 + at + ahead)
            prefetch_near(w1 + at + ahead)
            prefetch_near(w2 + at + ahead)
            prefetch_near(w3 + at + ahead)
            weights = load_w(w0 + at), load_w(w1 + at), load_w(w2 + at), load_w(w3 + at)
            sums = add(weights, x, i * x_bytes, count, sums)
        left = k - whole
        if left > 0:
            at = whole * w_bytes
            weights = (
                load_w_partial(w0 + at, left), load_w_partial(w1 + at, left),
                load_w_partial(w2 + at, left), load_w_partial(w3 + at, left),
            )  # fmt: skip
            sums = add_partial(weights, x, whole * x_bytes, left, sums)
        return sums

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


def _make_store_each(tokens: int) -> Callable[..., Any]:
    """An inline function: as `_store_four`, of so many tokens, whose outputs are `y_stride` apart."""
    if tokens == 0:

        @inline
        def store_none(
            sums: Any, count: int, y: int, y_stride: int, residual: int, bias: int, index: int, to: int
        ) -> None:
            pass

        return store_none
    store_before, last = _make_store_each(tokens - 1), tokens - 1

    @inline
    def store_each(
        sums: Any, count: int, y: int, y_stride: int, residual: int, bias: int, index: int, to: int
    ) -> None:
        store_before(sums, count, y, y_stride, residual, bias, index, to)
        _store_four(sums[last], count, y, residual, bias, index, to + last * y_stride)

    return store_each


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
            prefetch_near(w + next + at)
            prefetch_near(w1 + next + at)
            prefetch_near(w2 + next + at)
            prefetch_near(w3 + next + at)
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


def _make_tokens(kind: str, tokens: int) -> Callable[..., Any]:
    """An inline function: four rows of weights, or the `left` that there are, times tokens, stored."""
    four_rows, size = make_four_rows_of(kind, tokens), TERMS[kind].weight_bytes
    store_each = _make_store_each(tokens)

    @inline
    def multiply(
        w: int, left: int, x: int, x_stride: int, y: int, y_stride: int, residual: int, bias: int,
        index: int, to: int, k: int,
    ) -> None:  # fmt: skip
        # Past the last row of weights that is multiplied again, and not stored.
        row_bytes = k * size
        w1, w2 = w + min(1, left - 1) * row_bytes, w + min(2, left - 1) * row_bytes
        w3 = w + min(3, left - 1) * row_bytes
        third = x + 2 * x_stride
        fifth = third + 2 * x_stride
        at = x, x + x_stride, third, third + x_stride, fifth, fifth + x_stride
        sums = four_rows(w, w1, w2, w3, at, 4 * row_bytes, k)
        store_each(sums, left, y, y_stride, residual, bias, index, to)

    return multiply


def make_float_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, product)`, see `mul_mat`.

    Weight rows begin to end of a product of `kind` times all `rows` rows of activations. The sums of a row do
    not depend on how many there are.
    """
    one = _make_one_token(kind)
    two, three, four, five, six = (_make_tokens(kind, tokens) for tokens in (2, 3, 4, 5, 6))
    size = TERMS[kind].weight_bytes

    @inline
    def multiply(begin: int, end: int, product: Any) -> None:
        w, x, y, residual, bias, k, x_stride, y_stride, rows, _ = product
        if rows == 1:
            one(begin, end, w, x, y, residual, bias, k)
            return
        for index in range(begin, end, 4):
            at, left = w + index * k * size, end - index
            token = 0
            while token < rows:
                tokens, to, first = rows - token, token * y_stride, x + token * x_stride
                # Nobody is left alone at the end: 5 and 6 pass together, or as 3 and 2, 3 and 3.
                if tokens == 2:
                    two(at, left, first, x_stride, y, y_stride, residual, bias, index, to, k)
                    token += 2
                elif tokens == 3 or (not _SIX_FIT and (tokens == 5 or tokens == 6)):
                    three(at, left, first, x_stride, y, y_stride, residual, bias, index, to, k)
                    token += 3
                elif _SIX_FIT and tokens == 5:
                    five(at, left, first, x_stride, y, y_stride, residual, bias, index, to, k)
                    token += 5
                elif _SIX_FIT and tokens == 6:
                    six(at, left, first, x_stride, y, y_stride, residual, bias, index, to, k)
                    token += 6
                else:
                    four(at, left, first, x_stride, y, y_stride, residual, bias, index, to, k)
                    token += 4

    return multiply
