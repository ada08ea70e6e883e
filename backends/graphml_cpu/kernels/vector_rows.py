"""Rows of float32, vector by vector: a vector of a row, or the few numbers that are left at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import F32, WIDTH, load, load_partial, load_whole, store, store_partial, zero


@inline
def get(at: int, count: int) -> Vector:
    """The `count` float32 at an address, at most a vector of them; other lanes are 0."""
    return load(F32, at) if count >= WIDTH else load_partial(F32, at, count)


@inline
def put(at: int, v: Vector, count: int) -> None:
    """Store the first `count` lanes, at most a vector of them."""
    if count >= WIDTH:
        store(at, v)
    else:
        store_partial(at, v, count)


@inline
def put_zeros(out: int, n: int) -> None:
    """n float32 zeros."""
    for i in range(0, n, WIDTH):
        put(out + i * 4, zero(F32), n - i)


def make_write_row(make_formula: Callable[..., Any]) -> Callable[..., None]:
    """An inline function `write_row(out, n, *operands)`: n numbers by a formula, vector by vector, to `out`.

    `make_formula(read)` returns the inline function `formula(at, count, *operands)` of the vector from byte
    `at` of the row on; `read(F32, address, count)` loads a vector of an operand. It is called twice: for
    whole vectors, and for the `count` numbers left at the end of the row.
    """
    vector, end = make_formula(load_whole), make_formula(load_partial)

    @inline
    def write_row(out: int, n: int, *operands: Any) -> None:
        whole = n - n % WIDTH
        for i in range(0, whole, WIDTH):
            store(out + i * 4, vector(i * 4, WIDTH, *operands))
        if whole < n:
            store_partial(out + whole * 4, end(whole * 4, n - whole, *operands), n - whole)

    return write_row
