"""Products of float32 rows with weights of any format: panels of weights are decoded, then multiplied.

A thread takes a range of weight rows and multiplies them with all token rows, block by block. Knows threads
and blocks; how a block is multiplied, and why a token's result does not depend on its batch, stands in
`panel_products`.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.kernels.products.panel_products import list_token, make_multiply_block
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import PANEL_ROWS, TOKEN_BLOCK


def make_mul_mat_panels(format: str, one_order: bool = False) -> Callable[..., None]:
    """y = x @ decoded(w).T + bias + residual, for weights of `format` (a name of `kernels.formats`).

    w: n rows of k elements, `row_bytes` apart. x float32 [rows, k], rows `x_stride` bytes apart. y float32
    [rows, n] and residual of the same shape (or address 0), rows `y_stride` bytes apart; residual may be y.
    bias float32 [n] or address 0. scratch: this thread's own `layouts.panel_scratch_bytes(k)` bytes. k is a
    multiple of the format's block; for f32, f16 and bf16 any number. one_order: the sums of a token do not
    depend on how many there are.
    """
    multiply_block = make_multiply_block(format, one_order)

    def mul_mat_panels(
        ith: Int, nth: Int, w: Address, x: Address, y: Address, residual: Address, bias: Address, n: Int,
        k: Int, row_bytes: Int, x_stride: Int, y_stride: Int, scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, (n + PANEL_ROWS - 1) // PANEL_ROWS)
        begin, end = begin * PANEL_ROWS, min(end * PANEL_ROWS, n)
        for token in range(0, rows, TOKEN_BLOCK):
            tokens = min(TOKEN_BLOCK, rows - token)
            for i in range(tokens):
                place = (token + i) * y_stride
                residual_at = residual + place if residual != 0 else 0
                list_token(scratch, i, x + (token + i) * x_stride, y + place, residual_at)
            multiply_block(w, row_bytes, begin, end, k, tokens, bias, scratch)

    return mul_mat_panels
