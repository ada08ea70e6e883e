"""Copies in another layout: dimensions permuted, rows joined, columns cut out. Elements are any 4 bytes."""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import share
from graphml_cpu.simd import I32, WIDTH, load, load_i32, load_partial, store, store_i32, store_partial


@inline
def _copy(x: int, out: int, n: int) -> None:
    whole = n - n % WIDTH
    for i in range(0, whole, WIDTH):
        store(out + i * 4, load(I32, x + i * 4))
    if whole < n:
        store_partial(out + whole * 4, load_partial(I32, x + whole * 4, n - whole), n - whole)


def make_permute(*axes: int) -> Callable[..., None]:
    """out = the dimensions of x in the order of the four axes; x [n0, n1, n2, n3] and out without gaps."""
    first, second, third, fourth = axes

    def permute(ith: Int, nth: Int, x: Address, out: Address, n0: Dim, n1: Dim, n2: Dim, n3: Dim) -> None:
        sizes, strides = (n0, n1, n2, n3), (n1 * n2 * n3 * 4, n2 * n3 * 4, n3 * 4, 4)
        n_pages, n_rows, n = sizes[second], sizes[third], sizes[fourth]
        stride = strides[fourth]
        begin, end = share(ith, nth, sizes[first] * n_pages * n_rows)
        for row in range(begin, end):
            page = row // n_rows
            i = page // n_pages
            source = x + i * strides[first] + (page - i * n_pages) * strides[second]
            source += (row - page * n_rows) * strides[third]
            to = out + row * n * 4
            if fourth == 3:
                _copy(source, to, n)
            else:
                for column in range(n):
                    store_i32(to + column * 4, load_i32(source + column * stride))

    return permute


def make_concat() -> Callable[..., None]:
    """out[row] = a[row], then b[row]; a [rows, n_a], b [rows, n_b] and out without gaps."""

    def concat(
        ith: Int, nth: Int, a: Address, b: Address, out: Address, n_a: Int, n_b: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            to = out + row * (n_a + n_b) * 4
            _copy(a + row * n_a * 4, to, n_a)
            _copy(b + row * n_b * 4, to + n_a * 4, n_b)

    return concat


def make_columns() -> Callable[..., None]:
    """out[row] = x[row, start : start + n]; x: rows `x_stride` bytes apart; out [rows, n] without gaps."""

    def columns(
        ith: Int, nth: Int, x: Address, out: Address, start: Int, n: Int, x_stride: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            _copy(x + row * x_stride + start * 4, out + row * n * 4, n)

    return columns


def make_repeat() -> Callable[..., None]:
    """out[row, i] = x[row] for i of 0 .. times - 1; x [rows, n] and out [rows, times, n] without gaps."""

    def repeat(ith: Int, nth: Int, x: Address, out: Address, times: Int, n: Int, rows: Dim) -> None:
        begin, end = share(ith, nth, rows * times)
        for unit in range(begin, end):
            _copy(x + unit // times * n * 4, out + unit * n * 4, n)

    return repeat
