"""The causal depthwise convolution over each sequence, whose last inputs are the sequence's state.

The threads share the channels, and each takes the tokens one after the other, so no thread waits for another.
Knows tokens by their sequence and position; nothing of what comes before or after the convolution.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.elementwise.formulas import UNARY, pick
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.kernels.vector_rows import get, put
from graphml_cpu.simd import F32, WIDTH, fma, load_i32, zero


@inline
def _itself(x: Vector) -> Vector:
    return x


def make_ssm_conv(activation: str = "") -> Callable[..., None]:
    """out[t] = sum of weight[k] * (the input d_conv - 1 - k tokens before t) + bias; the state moves on.

    activation: of the result, a name of `UNARY`; "": none.
    state float32 [S, d_conv - 1, n], the oldest input first; x, out float32 [rows, n], out may be x; weight
    float32 [d_conv, n]; bias float32 [n] or address 0; sequences, positions int32 [rows]. A token of a
    sequence outside 0 .. n_sequences - 1 has zeros.
    """
    finish = pick(UNARY, activation, "ssm_conv") if activation else _itself

    def ssm_conv(
        ith: Int, nth: Int, state: RunAddress, x: Address, weight: Address, bias: Address, sequences: Address,
        positions: Address, out: Address, n: Int, d_conv: Int, n_sequences: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        row, kept = n * 4, d_conv - 1
        first, last = share(ith, nth, (n + WIDTH - 1) // WIDTH)
        for t in range(rows):
            sequence = load_i32(sequences + t * 4)
            if not 0 <= sequence < n_sequences:
                for i in range(first * WIDTH, last * WIDTH, WIDTH):
                    put(out + t * row + i * 4, zero(F32), n - i)
                continue
            mine = state + sequence * kept * row
            fresh = load_i32(positions + t * 4) == 0
            for i in range(first * WIDTH, last * WIDTH, WIDTH):
                at, count = i * 4, n - i
                if fresh:
                    for k in range(kept):
                        put(mine + k * row + at, zero(F32), count)
                total = zero(F32)
                if bias != 0:
                    total = get(bias + at, count)
                for k in range(kept):
                    before = get(mine + k * row + at, count)
                    total = fma(before, get(weight + k * row + at, count), total)
                    if k > 0:
                        put(mine + (k - 1) * row + at, before, count)
                v = get(x + t * row + at, count)
                put(mine + (kept - 1) * row + at, v, count)
                put(out + t * row + at, finish(fma(v, get(weight + kept * row + at, count), total)), count)

    return ssm_conv
