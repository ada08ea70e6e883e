"""From a router's scores to each token's experts and their weights. Knows one token at a time.

The numbers are those of the plain kernels one after the other: `softmax` or `sigmoid`, `top_k`, `gather`, and
`gather_normalise`.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.elementwise.formulas import UNARY
from graphml_cpu.kernels.experts.combine import hold
from graphml_cpu.kernels.indexing.top_k import choose
from graphml_cpu.kernels.reductions.reduce import softmax_row
from graphml_cpu.kernels.share import Number, share
from graphml_cpu.simd import (
    F32,
    WIDTH,
    f32,
    load,
    load_f32,
    load_i32,
    load_partial,
    store,
    store_f32,
    store_partial,
)

_sigmoid = UNARY["sigmoid"]


@inline
def _sigmoid_row(x: int, out: int, n: int) -> None:
    for i in range(0, n, WIDTH):
        if n - i >= WIDTH:
            store(out + i * 4, _sigmoid(load(F32, x + i * 4)))
        else:
            store_partial(out + i * 4, _sigmoid(load_partial(F32, x + i * 4, n - i)), n - i)


@inline
def _add_row(x: int, y: int, out: int, n: int) -> None:
    for i in range(n):
        store_f32(out + i * 4, load_f32(x + i * 4) + load_f32(y + i * 4))


def make_route_experts(score: str, normalise: bool) -> Callable[..., None]:
    """ids[row] = the k experts with the highest scores (plus bias), weights[row] = their scores.

    x float32 [rows, n], bias float32 [n] or address 0, ids int32 and weights float32 [rows, k]. score:
    `softmax` or `sigmoid` of x; `softmax_of_chosen`: x itself, and of those chosen the softmax. normalise:
    divided by their sum, held between low and high. scratch: this thread's own 2 * n float32.
    """
    after = score == "softmax_of_chosen"
    by_softmax = score == "softmax"

    def route_experts(
        ith: Int, nth: Int, x: Address, bias: Address, ids: Address, weights: Address, n: Int, k: Int,
        low: Float, high: Float, scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            scores, chosen, out = x + row * n * 4, ids + row * k * 4, weights + row * k * 4
            if not after:
                if by_softmax:
                    softmax_row(scores, scratch, n)
                else:
                    _sigmoid_row(scores, scratch, n)
                scores = scratch
            ranked = scores
            if bias != 0:
                ranked = scratch + n * 4
                _add_row(scores, bias, ranked, n)
            choose(ranked, 0, n, k, chosen, 0)
            total: Number = f32(0.0)
            for i in range(k):
                value = load_f32(scores + load_i32(chosen + i * 4) * 4)
                store_f32(out + i * 4, value)
                total += value
            if after:
                softmax_row(out, out, k)
            if normalise:
                divisor = hold(total, low, high)
                for i in range(k):
                    store_f32(out + i * 4, load_f32(out + i * 4) / divisor)

    return route_experts
