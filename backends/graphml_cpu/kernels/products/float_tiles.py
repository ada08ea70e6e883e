"""Panels of F32, F16 and BF16 weights times many rows that lie side by side, as `float_terms` pairs them.

Knows where the rows are; how they are multiplied is in `panel_products`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.products.column_tiles import TOKENS as TOKENS
from graphml_cpu.kernels.products.float_terms import TERMS
from graphml_cpu.kernels.products.panel_products import list_token, make_multiply_panels
from graphml_cpu.layouts import PANEL_ELEMENTS, TOKEN_BLOCK
from graphml_cpu.simd import WIDTH


def make_float_tiles(
    kind: str, tokens: int = TOKENS, most_columns: int = PANEL_ELEMENTS
) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, product)`, see `mul_mat`.

    Panels begin to end (of 2 W weight rows each, `most_columns` at a time, no more than PANEL_ELEMENTS) of
    a product of `kind` times all rows of activations, `tokens` of them (even, at most 16) in a tile.
    """
    multiply_panels = make_multiply_panels(kind, tokens, most_columns)
    size = TERMS[kind].weight_bytes

    @inline
    def multiply(begin: int, end: int, product: Any) -> None:
        w, x, y, residual, bias, n, k, x_stride, y_stride, rows, scratch = product
        first, last = begin * 2 * WIDTH, min(end * 2 * WIDTH, n)
        for token in range(0, rows, TOKEN_BLOCK):
            count = min(TOKEN_BLOCK, rows - token)
            for i in range(count):
                place = (token + i) * y_stride
                residual_at = residual + place if residual != 0 else 0
                list_token(scratch, i, x + (token + i) * x_stride, y + place, residual_at)
            multiply_panels(w, k * size, first, last, k, count, bias, scratch)

    return multiply
