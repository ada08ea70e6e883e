"""The sum of one row of float32, which norms and reductions share: 4 vectors of sums side by side."""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number
from graphml_cpu.simd import F32, WIDTH, load, load_partial, sum_lanes, zero

_STEP = WIDTH * 4  # bytes of one vector


@inline
def sum_row(x: int, n: int) -> Number:
    """The sum of n numbers at address x."""
    a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
    whole = n - n % (4 * WIDTH)
    for i in range(0, whole, 4 * WIDTH):
        at = x + i * 4
        a = a + load(F32, at)
        b = b + load(F32, at + _STEP)
        c = c + load(F32, at + 2 * _STEP)
        d = d + load(F32, at + 3 * _STEP)
    for i in range(whole, n, WIDTH):
        a = a + load_partial(F32, x + i * 4, n - i)
    return sum_lanes((a + b) + (c + d))
