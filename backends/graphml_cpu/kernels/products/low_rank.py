"""What a low-rank adapter adds: y[row] = total[row] + b @ (factor[row] * (a @ x[row])), in two calls.

Rows with a factor of 0 are those of other adapters: they are passed over, so that a step of many adapters costs
what its rows cost. The sums of a row do not depend on the rows beside it, on their number or on the threads: of
`a` they are those of `products.float_rows`; of `b` the total comes first, then the columns one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.products.float_rows import make_four_rows_4
from graphml_cpu.kernels.products.register_tiles import VECTOR_BYTES, transpose
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.simd import (
    F32,
    WIDTH,
    fma,
    load,
    load_f32,
    load_i32,
    load_partial,
    splat,
    store,
    store_f32,
    store_i32,
    store_partial,
    sum_lanes,
)


@inline
def _list_rows(factors: int, rows: int, chosen: int) -> int:
    """Write the numbers of the rows whose factor is not 0, int32, and return how many they are."""
    count = 0
    for row in range(rows):
        if load_f32(factors + row * 4) != 0.0:
            store_i32(chosen + count * 4, row)
            count += 1
    return count


@inline
def _store_row(sums: Vector, factor: float, to: int, left: int) -> None:
    """The first `left` of four rows' sums, times the factor."""
    store_f32(to, sum_lanes(sums[0]) * factor)
    if left > 1:
        store_f32(to + 4, sum_lanes(sums[1]) * factor)
    if left > 2:
        store_f32(to + 8, sum_lanes(sums[2]) * factor)
    if left > 3:
        store_f32(to + 12, sum_lanes(sums[3]) * factor)


def make_low_rank_down() -> Callable[..., None]:
    """low[i] = factor * (a @ x) of the i-th row with a factor.

    x float32 [rows, k], factors float32 [rows], a float32 [rank, k], low float32 [rows, rank]; scratch: this
    thread's own int32 [rows]. Threads share the tiles of four rows and four columns of `low`.
    """
    four_rows = make_four_rows_4("f32")

    def low_rank_down(
        ith: Int, nth: Int, x: Address, a: Address, factors: Address, low: Address, k: Int, rank: Int,
        scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        count = _list_rows(factors, rows, scratch)
        row_bytes = k * 4
        down = (count + 3) // 4
        begin, end = share(ith, nth, down * ((rank + 3) // 4))
        for unit in range(begin, end):
            # Tiles of the same columns follow each other: their part of `a` stays in the first cache.
            column = unit // down * 4
            first = (unit - unit // down * down) * 4
            # Past the last column or row that one is multiplied again, and not stored.
            wide, left = rank - column, count - first
            w0 = a + column * row_bytes
            w1, w2 = w0 + min(1, wide - 1) * row_bytes, w0 + min(2, wide - 1) * row_bytes
            w3 = w0 + min(3, wide - 1) * row_bytes
            r0 = load_i32(scratch + first * 4)
            r1 = load_i32(scratch + (first + min(1, left - 1)) * 4)
            r2 = load_i32(scratch + (first + min(2, left - 1)) * 4)
            r3 = load_i32(scratch + (first + min(3, left - 1)) * 4)
            t0, t1, t2, t3 = four_rows(
                w0, w1, w2, w3, x + r0 * row_bytes, x + r1 * row_bytes, x + r2 * row_bytes,
                x + r3 * row_bytes, 4 * row_bytes, k,
            )  # fmt: skip
            to = low + (first * rank + column) * 4
            _store_row(t0, load_f32(factors + r0 * 4), to, wide)
            if left > 1:
                _store_row(t1, load_f32(factors + r1 * 4), to + rank * 4, wide)
            if left > 2:
                _store_row(t2, load_f32(factors + r2 * 4), to + rank * 8, wide)
            if left > 3:
                _store_row(t3, load_f32(factors + r3 * 4), to + rank * 12, wide)

    return low_rank_down


@inline
def _load_some(at: int, count: int) -> Vector:
    if count >= WIDTH:
        return load(F32, at)
    return load_partial(F32, at, count)


@inline
def _store_some(at: int, value: Vector, count: int) -> None:
    if count >= WIDTH:
        store(at, value)
    else:
        store_partial(at, value, count)


@inline
def _add_column(low: int, weights: Vector, total: Vector) -> Vector:
    return fma(weights, splat(F32, load_f32(low)), total)


def make_low_rank_up() -> Callable[..., None]:
    """y[row] = total[row] + b @ low[i], where the row is the i-th with a factor; other rows are the total's.

    total and y float32 [rows, n], which may be the same memory; b float32 [n, rank]; low and factors as of
    `low_rank_down`. scratch: this thread's own `low_rank_scratch_bytes`. Threads share the columns of y.
    """

    def low_rank_up(
        ith: Int, nth: Int, total: Address, factors: Address, low: Address, b: Address, y: Address, n: Int,
        rank: Int, scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, (n + WIDTH - 1) // WIDTH)
        decoded, panel, b_bytes, y_bytes = scratch, scratch + WIDTH * VECTOR_BYTES, rank * 4, n * 4
        chosen = panel + (rank + WIDTH - 1) // WIDTH * WIDTH * VECTOR_BYTES
        count = _list_rows(factors, rows, chosen)
        if y != total:
            for row in range(rows):
                for i in range(begin * WIDTH, min(end * WIDTH, n), WIDTH):
                    at = row * y_bytes + i * 4
                    _store_some(y + at, _load_some(total + at, n - i), n - i)
        if count == 0:
            return
        for first in range(begin * WIDTH, min(end * WIDTH, n), WIDTH):
            left, w = n - first, b + first * b_bytes
            for column in range(0, rank, WIDTH):
                if left >= WIDTH and rank - column >= WIDTH:
                    transpose(w + column * 4, b_bytes, panel + column * VECTOR_BYTES, VECTOR_BYTES)
                else:
                    for row in range(WIDTH):
                        at = w + min(row, left - 1) * b_bytes + column * 4
                        store(decoded + row * VECTOR_BYTES, _load_some(at, rank - column))
                    transpose(decoded, VECTOR_BYTES, panel + column * VECTOR_BYTES, VECTOR_BYTES)
            at = y + first * 4
            whole = count - count % 4
            for i in range(0, whole, 4):
                a0 = at + load_i32(chosen + i * 4) * y_bytes
                a1 = at + load_i32(chosen + i * 4 + 4) * y_bytes
                a2 = at + load_i32(chosen + i * 4 + 8) * y_bytes
                a3 = at + load_i32(chosen + i * 4 + 12) * y_bytes
                s0, s1 = _load_some(a0, left), _load_some(a1, left)
                s2, s3 = _load_some(a2, left), _load_some(a3, left)
                place = low + i * b_bytes
                for column in range(rank):
                    weights, down = load(F32, panel + column * VECTOR_BYTES), place + column * 4
                    s0 = _add_column(down, weights, s0)
                    s1 = _add_column(down + b_bytes, weights, s1)
                    s2 = _add_column(down + 2 * b_bytes, weights, s2)
                    s3 = _add_column(down + 3 * b_bytes, weights, s3)
                _store_some(a0, s0, left)
                _store_some(a1, s1, left)
                _store_some(a2, s2, left)
                _store_some(a3, s3, left)
            for i in range(whole, count):
                a0 = at + load_i32(chosen + i * 4) * y_bytes
                s0 = _load_some(a0, left)
                for column in range(rank):
                    weights = load(F32, panel + column * VECTOR_BYTES)
                    s0 = _add_column(low + i * b_bytes + column * 4, weights, s0)
                _store_some(a0, s0, left)

    return low_rank_up
