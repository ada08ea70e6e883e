"""The order of a row's elements by size: a radix sort, in the time of a few passes over the row.

And the first of them in this order whose shares add up to enough.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.layouts import SORT_BITS, SORT_PASSES
from graphml_cpu.simd import f32, load_f32, load_i32, load_i64, store_i64

_BITS, _BUCKETS, _PASSES = SORT_BITS, 1 << SORT_BITS, SORT_PASSES


@inline
def _sort(x: int, out: int, other: int, counts: int, n: int) -> None:
    """Key and position share an int64: the key is the complement of what orders floats as whole numbers."""
    for i in range(_PASSES * _BUCKETS):
        store_i64(counts + i * 8, 0)
    for i in range(n):
        bits = load_i32(x + i * 4)
        if bits == -2147483648:
            bits = 0
        key = (((bits >> 31) & 0x7FFFFFFF) ^ bits ^ 0x7FFFFFFF) & 0xFFFFFFFF
        store_i64(other + i * 8, (key << 31) | i)
        for turn in range(_PASSES):
            at = counts + (turn * _BUCKETS + ((key >> (turn * _BITS)) & (_BUCKETS - 1))) * 8
            store_i64(at, load_i64(at) + 1)
    source, target = other, out
    for turn in range(_PASSES):
        base = counts + turn * _BUCKETS * 8
        before = 0
        for bucket in range(_BUCKETS):
            here = load_i64(base + bucket * 8)
            store_i64(base + bucket * 8, before)
            before += here
        shift = 31 + turn * _BITS
        for i in range(n):
            pair = load_i64(source + i * 8)
            at = base + ((pair >> shift) & (_BUCKETS - 1)) * 8
            place = load_i64(at)
            store_i64(at, place + 1)
            kept = pair
            if turn == _PASSES - 1:
                kept = pair & 0x7FFFFFFF
            store_i64(target + place * 8, kept)
        source, target = target, source


def make_descending() -> Callable[..., None]:
    """out = the positions of x, the largest element first, equal ones by position; 0.0 and -0.0 are equal.

    x float32 [n] without NaN; out and other int64 [n]; counts of SORT_COUNTS_BYTES. One thread does it all.
    """

    def descending(
        ith: Int, nth: Int, x: Address, out: Address, other: Address, counts: Address, n: Int
    ) -> None:
        _sort(x, out, other, counts, n)

    return descending


def make_prefix() -> Callable[..., None]:
    """The same, and count int64 [1] = how many of them have shares that reach the mass, n where none do.

    share float32 [n], by x's positions; they are added in float32, one after the other. beyond: 1 where the
    sum has to exceed the mass, 0 where it may be equal.
    """

    def prefix(
        ith: Int,
        nth: Int,
        x: Address,
        share: Address,
        out: Address,
        other: Address,
        counts: Address,
        count: Address,
        n: Int,
        mass: Float,
        beyond: Int,
    ) -> None:
        _sort(x, out, other, counts, n)
        running = f32(0.0)
        needed = 0
        while needed < n and (running < mass or (beyond == 1 and running == mass)):
            running += load_f32(share + load_i64(out + needed * 8) * 4)
            needed += 1
        store_i64(count, needed)

    return prefix
