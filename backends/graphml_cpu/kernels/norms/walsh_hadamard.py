"""Walsh-Hadamard transforms of blocks of rows of float32, in n log2(n) sums of each block.

Knows one block at a time: first the strides within a vector, by shuffles, then those between vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.kernels.vector_rows import get, put
from graphml_cpu.simd import F32, WIDTH, constant_lanes, fma, load, shuffle_by, store


@inline
def _as_it_is(v: Vector) -> Vector:
    return v


def _make_sums(before: Callable[..., Any], stride: int) -> Callable[..., Any]:
    """An inline function: what `before` makes, and then the sums and differences of lanes so far apart."""
    partner = shuffle_by([lane ^ stride for lane in range(WIDTH)])
    sign = constant_lanes(F32, [-1 if lane & stride else 1 for lane in range(WIDTH)])

    @inline
    def sums(v: Vector) -> Vector:
        w = before(v)
        return fma(w, sign(), partner(w))

    return sums


def make_walsh_hadamard(block: int) -> Callable[..., None]:
    """out: each block of x times the orthonormal matrix of its size; float32 [blocks, block]; out may be x.

    factor: block ** -0.5. A vector that is longer than a block holds several.
    """
    within = _as_it_is
    for bit in range(min(block, WIDTH).bit_length() - 1):
        within = _make_sums(within, 1 << bit)
    size = max(block, WIDTH)

    def walsh_hadamard(ith: Int, nth: Int, x: Address, out: Address, factor: Float, blocks: Dim) -> None:
        n = blocks * block
        begin, end = share(ith, nth, (n + size - 1) // size)
        for first in range(begin * size, end * size, size):
            for i in range(first, first + size, WIDTH):
                put(out + i * 4, within(get(x + i * 4, n - i) * factor), n - i)
            stride = WIDTH
            while stride < block:
                for pair in range(first, first + block, 2 * stride):
                    for i in range(pair, pair + stride, WIDTH):
                        low, high = out + i * 4, out + (i + stride) * 4
                        v, w = load(F32, low), load(F32, high)
                        store(low, v + w)
                        store(high, v - w)
                stride = 2 * stride

    return walsh_hadamard
