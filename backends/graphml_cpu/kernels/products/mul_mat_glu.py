"""A gate and its two products in one: out = act(gate @ x) * (up @ x), an op of `formulas.GLU`.

`gate` and `up` are [n, k] weights of one format, their biases float32 [n] (address 0: none), `out` float32
[rows, n]. A thread works at some columns at a time, whose two products lie in its `scratch`, and so in its
cache. The rest is as of `products.mul_mat`, whose loops these are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.elementwise.formulas import GLU, pick
from graphml_cpu.kernels.elementwise.operations import make_pairs
from graphml_cpu.kernels.products.mul_mat import PANEL_ROWS, make_many, make_rows
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import FEW_ROWS, GLU_COLUMNS, GLU_PANEL_COLUMNS


def _make_few(kind: str, glu: str) -> Callable[..., Any]:
    """An inline function for a few rows of activations: columns begin to end of the result."""
    multiply, pairs = make_rows(kind), make_pairs(pick(GLU, glu, "mul_mat_glu"))

    @inline
    def few(
        begin: int, end: int, gate: int, up: int, x: int, out: int, gate_bias: int, up_bias: int, n: int,
        k: int, x_stride: int, rows: int, products: int,
    ) -> None:  # fmt: skip
        half = FEW_ROWS * GLU_COLUMNS * 4
        for first in range(begin, end, GLU_COLUMNS):
            last = min(first + GLU_COLUMNS, end)
            for i in range(2):
                w, bias = (gate, gate_bias) if i == 0 else (up, up_bias)
                to = products + i * half - first * 4
                multiply(first, last, w, x, to, 0, bias, k, x_stride, GLU_COLUMNS * 4, rows)
            for row in range(rows):
                left = products + row * GLU_COLUMNS * 4
                pairs(left, left + half, out + (row * n + first) * 4, 0, last - first)

    return few


def make_mul_mat_glu_vec(kind: str, glu: str) -> Callable[..., None]:
    """For one row of activations, or a few: the weights are read once in file order."""
    few = _make_few(kind, glu)

    def mul_mat_glu_vec(
        ith: Int, nth: Int, gate: Address, up: Address, x: Address, out: Address, gate_bias: Address,
        up_bias: Address, n: Int, k: Int, x_stride: Int, scratch: Address, products: Int, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, n)
        few(begin, end, gate, up, x, out, gate_bias, up_bias, n, k, x_stride, rows, scratch + products)

    return mul_mat_glu_vec


def make_mul_mat_glu(kind: str, glu: str) -> Callable[..., None]:
    """For any number of rows of activations.

    scratch: that of `mul_mat`, and from its byte `products` on `layouts.glu_scratch_bytes` for the products.
    """
    few, multiply = _make_few(kind, glu), make_many(kind)
    pairs = make_pairs(pick(GLU, glu, "mul_mat_glu"))
    panels = max(1, GLU_PANEL_COLUMNS // PANEL_ROWS)

    def mul_mat_glu(
        ith: Int, nth: Int, gate: Address, up: Address, x: Address, out: Address, gate_bias: Address,
        up_bias: Address, n: Int, k: Int, x_stride: Int, scratch: Address, products: Int, rows: Dim,
    ) -> None:  # fmt: skip
        if rows <= FEW_ROWS:
            begin, end = share(ith, nth, n)
            few(begin, end, gate, up, x, out, gate_bias, up_bias, n, k, x_stride, rows, scratch + products)
            return
        stride = panels * PANEL_ROWS * 4
        half = rows * stride
        units = (n + panels * PANEL_ROWS - 1) // (panels * PANEL_ROWS)
        begin, end = share(ith, nth, units)
        for unit in range(begin, end):
            column = unit * panels * PANEL_ROWS
            width = min(panels * PANEL_ROWS, n - column)
            for i in range(2):
                w, bias = (gate, gate_bias) if i == 0 else (up, up_bias)
                to = scratch + products + i * half - column * 4
                first = unit * panels
                last = first + (width + PANEL_ROWS - 1) // PANEL_ROWS
                multiply(first, last, w, x, to, 0, bias, n, k, x_stride, stride, rows, scratch)
            for row in range(rows):
                left = scratch + products + row * stride
                pairs(left, left + half, out + (row * n + column) * 4, 0, width)

    return mul_mat_glu
