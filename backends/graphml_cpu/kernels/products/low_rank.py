"""What low-rank adapters add: y[row] = total[row] + b @ (factor[row] * (a @ x[row])) of each, in two calls.

Rows with a factor of 0 are those of other adapters: they are passed over, so that a step of many adapters
costs what its rows cost. The sums of a row do not depend on the rows beside it, on their number or on the
threads: of `a` they are those of `products.float_rows`; of `b` the total comes first, then the adapters in
turn, of each the columns one after the other.

`table` has four int64 for each adapter: the addresses of its factors float32 [rows], of a float32 [rank, k]
and of b float32 [n, rank], and its rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.products.float_rows import make_four_rows_of
from graphml_cpu.kernels.products.register_tiles import VECTOR_BYTES, transpose
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.kernels.vector_rows import get, put
from graphml_cpu.simd import (
    F32,
    WIDTH,
    fma,
    load,
    load_f32,
    load_i32,
    load_i64,
    prefetch_near,
    splat,
    store,
    store_f32,
    store_i32,
    sum_lanes,
)

_ENTRY = 32


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


@inline
def _list_all(table: int, count: int, rows: int, chosen: int) -> None:
    """List the rows of each adapter: `rows` int32 for each, and before them how many there are."""
    for i in range(count):
        here = chosen + i * (rows + 1) * 4
        store_i32(here, _list_rows(load_i64(table + i * _ENTRY), rows, here + 4))


@inline
def _tiles(rank: int, listed: int) -> int:
    return (listed + 3) // 4 * ((rank + 3) // 4)


def make_low_rank_down() -> Callable[..., None]:
    """low[i] = factor * (a @ x) of the i-th row with a factor, for each of `count` adapters.

    x float32 [rows, k]; low float32 [rows, rank] for one adapter after the other; scratch: this thread's own
    int32 [count, rows + 1]. Threads share the tiles of four rows and four columns of all `low`.
    """
    multiply = _make_down_tile()

    def low_rank_down(
        ith: Int, nth: Int, table: Address, count: Int, x: Address, low: Address, k: Int, scratch: Address,
        rows: Dim,
    ) -> None:  # fmt: skip
        _list_all(table, count, rows, scratch)
        units = 0
        for i in range(count):
            units += _tiles(load_i64(table + i * _ENTRY + 24), load_i32(scratch + i * (rows + 1) * 4))
        begin, end = share(ith, nth, units)
        to = low
        for i in range(count):
            entry, chosen = table + i * _ENTRY, scratch + i * (rows + 1) * 4
            rank, listed = load_i64(entry + 24), load_i32(chosen)
            here = _tiles(rank, listed)
            for unit in range(max(begin, 0), min(end, here)):
                multiply(unit, x, load_i64(entry + 8), load_i64(entry), to, chosen + 4, listed, k, rank)
            begin, end = begin - here, end - here
            to += rows * rank * 4

    return low_rank_down


def _make_down_tile() -> Callable[..., None]:
    """An inline function: four columns of `low` for four of the chosen rows."""
    four_rows = make_four_rows_of("f32", 4)

    @inline
    def multiply(
        unit: int, x: int, a: int, factors: int, low: int, chosen: int, count: int, k: int, rank: int
    ) -> None:
        # Tiles of the same columns follow each other: their part of `a` stays in the first cache.
        row_bytes, down = k * 4, (count + 3) // 4
        column = unit // down * 4
        first = (unit - unit // down * down) * 4
        # Past the last column or row that one is multiplied again, and not stored.
        wide, left = rank - column, count - first
        w0 = a + column * row_bytes
        w1, w2 = w0 + min(1, wide - 1) * row_bytes, w0 + min(2, wide - 1) * row_bytes
        w3 = w0 + min(3, wide - 1) * row_bytes
        r0 = load_i32(chosen + first * 4)
        r1 = load_i32(chosen + (first + min(1, left - 1)) * 4)
        r2 = load_i32(chosen + (first + min(2, left - 1)) * 4)
        r3 = load_i32(chosen + (first + min(3, left - 1)) * 4)
        at = x + r0 * row_bytes, x + r1 * row_bytes, x + r2 * row_bytes, x + r3 * row_bytes
        t0, t1, t2, t3 = four_rows(w0, w1, w2, w3, at, 4 * row_bytes, k)
        to = low + (first * rank + column) * 4
        _store_row(t0, load_f32(factors + r0 * 4), to, wide)
        if left > 1:
            _store_row(t1, load_f32(factors + r1 * 4), to + rank * 4, wide)
        if left > 2:
            _store_row(t2, load_f32(factors + r2 * 4), to + rank * 8, wide)
        if left > 3:
            _store_row(t3, load_f32(factors + r3 * 4), to + rank * 12, wide)

    return multiply


@inline
def _add_column(low: int, weights: Vector, total: Vector) -> Vector:
    return fma(weights, splat(F32, load_f32(low)), total)


@inline
def _copy_rows(total: int, y: int, rows: int, n: int, begin: int, end: int) -> None:
    """Columns begin to end of all rows."""
    for row in range(rows):
        for i in range(begin, end, WIDTH):
            at = (row * n + i) * 4
            put(y + at, get(total + at, n - i), n - i)


@inline
def _transpose_panel(w: int, rank: int, left: int, decoded: int, panel: int) -> None:
    """W rows of `b`, of which `left` are there, as one vector for each of its columns."""
    for column in range(0, rank, WIDTH):
        at, to = w + column * 4, panel + column * VECTOR_BYTES
        if left >= WIDTH and rank - column >= WIDTH:
            transpose(at, rank * 4, to, VECTOR_BYTES)
        else:
            for row in range(WIDTH):
                some = get(at + min(row, left - 1) * rank * 4, rank - column)
                store(decoded + row * VECTOR_BYTES, some)
            transpose(decoded, VECTOR_BYTES, to, VECTOR_BYTES)


@inline
def _add_eight(low: int, panel: int, rank: int, at: Any, more: Any, left: int) -> None:
    """Add to W columns of eight rows, at these addresses."""
    s0, s1, s2, s3 = (
        get(at[0], left), get(at[1], left), get(at[2], left), get(at[3], left)
    )  # fmt: skip
    s4, s5, s6, s7 = (
        get(more[0], left), get(more[1], left),
        get(more[2], left), get(more[3], left),
    )  # fmt: skip
    for column in range(rank):
        weights, by = load(F32, panel + column * VECTOR_BYTES), low + column * 4
        s0, s1 = _add_column(by, weights, s0), _add_column(by + rank * 4, weights, s1)
        s2, s3 = _add_column(by + rank * 8, weights, s2), _add_column(by + rank * 12, weights, s3)
        s4, s5 = _add_column(by + rank * 16, weights, s4), _add_column(by + rank * 20, weights, s5)
        s6, s7 = _add_column(by + rank * 24, weights, s6), _add_column(by + rank * 28, weights, s7)
    put(at[0], s0, left)
    put(at[1], s1, left)
    put(at[2], s2, left)
    put(at[3], s3, left)
    put(more[0], s4, left)
    put(more[1], s5, left)
    put(more[2], s6, left)
    put(more[3], s7, left)


@inline
def _add_four(low: int, panel: int, rank: int, at: Any, left: int) -> None:
    """Add to W columns of four rows, at these addresses."""
    s0, s1, s2, s3 = (
        get(at[0], left), get(at[1], left), get(at[2], left), get(at[3], left)
    )  # fmt: skip
    for column in range(rank):
        weights, by = load(F32, panel + column * VECTOR_BYTES), low + column * 4
        s0, s1 = _add_column(by, weights, s0), _add_column(by + rank * 4, weights, s1)
        s2, s3 = _add_column(by + rank * 8, weights, s2), _add_column(by + rank * 12, weights, s3)
    put(at[0], s0, left)
    put(at[1], s1, left)
    put(at[2], s2, left)
    put(at[3], s3, left)


@inline
def _add_one(low: int, panel: int, rank: int, at: int, left: int) -> None:
    """Add to W columns of one row."""
    total = get(at, left)
    for column in range(rank):
        total = _add_column(low + column * 4, load(F32, panel + column * VECTOR_BYTES), total)
    put(at, total, left)


@inline
def _four_of(chosen: int, at: int, row_bytes: int) -> Any:
    """The addresses in four of the chosen rows."""
    return (
        at + load_i32(chosen) * row_bytes, at + load_i32(chosen + 4) * row_bytes,
        at + load_i32(chosen + 8) * row_bytes, at + load_i32(chosen + 12) * row_bytes,
    )  # fmt: skip


@inline
def _add_rows(low: int, panel: int, rank: int, chosen: int, count: int, n: int, at: int, left: int) -> None:
    """Add to W columns, at this address in the first row, of all chosen rows."""
    done = 0
    while count - done >= 8:
        row = chosen + done * 4
        four, more = _four_of(row, at, n * 4), _four_of(row + 16, at, n * 4)
        _add_eight(low + done * rank * 4, panel, rank, four, more, left)
        done += 8
    if count - done >= 4:
        _add_four(low + done * rank * 4, panel, rank, _four_of(chosen + done * 4, at, n * 4), left)
        done += 4
    for i in range(done, count):
        _add_one(low + i * rank * 4, panel, rank, at + load_i32(chosen + i * 4) * n * 4, left)


def make_low_rank_up() -> Callable[..., None]:
    """y[row] = total[row] + b @ low[i] of each adapter that has the row as its i-th; others are the total's.

    total and y float32 [rows, n], which may be the same memory; low and count as of `low_rank_down`; rank:
    the largest; scratch: this thread's own `low_rank_scratch_bytes`. Threads share the columns of y.
    """

    def low_rank_up(
        ith: Int, nth: Int, total: Address, table: Address, count: Int, low: Address, y: Address, n: Int,
        rank: Int, scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, (n + WIDTH - 1) // WIDTH)
        begin, end = begin * WIDTH, min(end * WIDTH, n)
        panel = scratch + WIDTH * VECTOR_BYTES
        lists = panel + (rank + WIDTH - 1) // WIDTH * WIDTH * VECTOR_BYTES
        _list_all(table, count, rows, lists)
        if y != total:
            _copy_rows(total, y, rows, n, begin, end)
        for first in range(begin, end, WIDTH):
            left, at, here = n - first, y + first * 4, low
            for i in range(count):
                entry, chosen = table + i * _ENTRY, lists + i * (rows + 1) * 4
                own, listed = load_i64(entry + 24), load_i32(chosen)
                if listed > 0:
                    following = load_i64(entry + 16) + (first + WIDTH) * own * 4
                    for line in range(0, own * VECTOR_BYTES, 64):
                        prefetch_near(following + line)
                    _transpose_panel(load_i64(entry + 16) + first * own * 4, own, left, scratch, panel)
                    _add_rows(here, panel, own, chosen + 4, listed, n, at, left)
                here += rows * own * 4

    return low_rank_up
