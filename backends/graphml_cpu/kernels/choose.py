"""The largest elements of each row, and elements of each row by number. Knows one row at a time."""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import share
from graphml_cpu.simd import F32, WIDTH, any_lane, load, load_f32, load_i32, store_i32


@inline
def _before(a: float, b: float) -> bool:
    """Whether a stands before b, which came first: larger, or a number where b is a NaN."""
    return a > b or (b != b and a == a)  # a NaN is not itself


@inline
def _insert(x: int, chosen: int, filled: int, k: int, i: int) -> int:
    """Put element i in its place among `filled` chosen ones, where the last may fall out; how many then."""
    value = load_f32(x + i * 4)
    place = filled
    while place > 0 and _before(value, load_f32(x + load_i32(chosen + (place - 1) * 4) * 4)):
        if place < k:
            store_i32(chosen + place * 4, load_i32(chosen + (place - 1) * 4))
        place -= 1
    if place < k:
        store_i32(chosen + place * 4, i)
    return min(filled + 1, k)


@inline
def _none_before(x: int, chosen: int, k: int, first: int) -> bool:
    """Whether no element of the vector at `first` stands before the last chosen one; False if unsure."""
    last = load_f32(x + load_i32(chosen + (k - 1) * 4) * 4)
    return last == last and not any_lane(load(F32, x + first * 4) > last)


def make_top_k() -> Callable[..., None]:
    """out[row] = numbers of the k largest elements of x[row], the largest first, the first of equals first.

    x float32 [rows, n], rows `x_stride` bytes apart; out int32 [rows, k], 0 < k <= n. A NaN is smaller than
    all numbers.
    """

    def top_k(ith: Int, nth: Int, x: Address, out: Address, n: Int, k: Int, x_stride: Int, rows: Dim) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            source, chosen, filled = x + row * x_stride, out + row * k * 4, 0
            for first in range(0, n, WIDTH):
                if filled == k and first + WIDTH <= n and _none_before(source, chosen, k, first):
                    continue
                for i in range(first, min(first + WIDTH, n)):
                    filled = _insert(source, chosen, filled, k, i)

    return top_k


def make_gather() -> Callable[..., None]:
    """out[row, j] = x[row, ids[row, j]]; elements of 4 bytes.

    x [rows, n], rows `x_stride` bytes apart; ids int32 [rows, k], clamped to 0 .. n - 1; out [rows, k].
    """

    def gather(
        ith: Int, nth: Int, x: Address, ids: Address, out: Address, n: Int, k: Int, x_stride: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            for place in range(row * k * 4, (row + 1) * k * 4, 4):
                column = max(0, min(load_i32(ids + place), n - 1))
                store_i32(out + place, load_i32(x + row * x_stride + column * 4))

    return gather
