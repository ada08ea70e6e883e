"""A gate and its two products in one: out = act(gate @ x) * (up @ x), an op of `formulas.GLU`.

`gate` and `up` are [n, k] weights of one format, their biases float32 [n] (address 0: none), `out` float32
[rows, n]. A thread works at some columns at a time, whose two products are in its `scratch`, and so in its
cache. The rest is as of `products.mul_mat`, whose loops it calls.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Code, Dim, Int
from graphml_cpu.kernels.elementwise.formulas import GLU, pick
from graphml_cpu.kernels.elementwise.operations import make_pairs
from graphml_cpu.kernels.products.mul_mat import PANEL_ROWS, multiply_rows, multiply_tiles
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import FEW_ROWS, GLU_COLUMNS, GLU_PANEL_COLUMNS, PASSED_ROWS


def make_mul_mat_glu(glu: str) -> Callable[..., None]:
    """Without `tiles` any number of rows is multiplied as a few are.

    scratch: that of `mul_mat`, and from its byte `products` on `layouts.glu_scratch_bytes` for the products.
    """
    pairs = make_pairs(pick(GLU, glu, "mul_mat_glu"))
    panels = max(1, GLU_PANEL_COLUMNS // PANEL_ROWS)

    def mul_mat_glu(
        ith: Int, nth: Int, few: Code, tiles: Code, gate: Address, up: Address, x: Address, out: Address,
        gate_bias: Address, up_bias: Address, n: Int, k: Int, x_stride: Int, few_rows: Int, scratch: Address,
        products: Int, rows: Dim,
    ) -> None:  # fmt: skip
        is_few = rows <= few_rows or tiles == 0
        columns = GLU_COLUMNS if is_few else panels * PANEL_ROWS  # of the result, at a time
        if is_few and rows > FEW_ROWS:
            columns = PASSED_ROWS
        at_once = FEW_ROWS if is_few else rows
        stride = columns * 4
        half = at_once * stride
        if is_few:
            begin, end = share(ith, nth, n)
        else:
            begin, end = share(ith, nth, (n + columns - 1) // columns)
            begin, end = begin * columns, min(end * columns, n)
        for first in range(begin, end, columns):
            last = min(first + columns, end)
            for top in range(0, rows, at_once):
                taken, at = min(at_once, rows - top), x + top * x_stride
                for i in range(2):
                    w, bias = (gate, gate_bias) if i == 0 else (up, up_bias)
                    to = scratch + products + i * half - first * 4
                    if is_few:
                        multiply_rows(
                            few, first, last, w, at, to, 0, bias, k, x_stride, stride, taken, scratch
                        )
                    else:
                        begins, ends = first // PANEL_ROWS, (last + PANEL_ROWS - 1) // PANEL_ROWS
                        multiply_tiles(
                            tiles, begins, ends, w, at, to, 0, bias, n, k, x_stride, stride, taken, scratch
                        )
                for row in range(taken):
                    left = scratch + products + row * stride
                    pairs(left, left + half, out + ((top + row) * n + first) * 4, 0, last - first)

    return mul_mat_glu
