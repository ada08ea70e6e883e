"""What products with weights share: fetching weights ahead, adding bias and residual to a result, storing it.

Knows addresses only.
"""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import F32, WIDTH, load, load_f32, load_partial, store, store_f32, store_partial

# How many bytes ahead of its use a weight row is fetched: far enough to hide the memory's latency without the
# processor's own prefetching, which stops at the ends of pages. Into the second cache: the first waits for
# 24 lines at a time (Zen 4), 16 GB/s. Measured there: 24576 beats 12288 by up to a fifth, 40960 is the same.
AHEAD = 24576


@inline
def store_output(value: Number, y: int, residual: int, bias: int, column: int, row_offset: int) -> None:
    """One result in `column` of the row at byte `row_offset` of y (and of the residual; address 0: none)."""
    if bias != 0:
        value += load_f32(bias + column * 4)
    if residual != 0:
        value += load_f32(residual + row_offset + column * 4)
    store_f32(y + row_offset + column * 4, value)


@inline
def store_outputs(
    values: Vector, count: int, y: int, residual: int, bias: int, column: int, row_offset: int
) -> None:
    """The first `count` lanes as neighbouring results, from `column` on."""
    at = y + row_offset + column * 4
    if count >= WIDTH:
        if bias != 0:
            values += load(F32, bias + column * 4)
        if residual != 0:
            values += load(F32, residual + row_offset + column * 4)
        store(at, values)
    else:
        if bias != 0:
            values += load_partial(F32, bias + column * 4, count)
        if residual != 0:
            values += load_partial(F32, residual + row_offset + column * 4, count)
        store_partial(at, values, count)
