"""The kernels of products with weights: y = x @ w.T (+ bias) (+ residual), float32 results.

`w` is [n, k] in the file's own layout, row after row; `x` is [rows, k], its rows `x_stride` bytes apart:
packed int8 rows (`graphml_cpu.packed`) for the formats that have a `Reader`, float32 for F32, F16 and BF16;
the kind `packed.BF16_PAIRS` is BF16 weights and rows packed to bfloat16.
`bias` is float32 [n], `residual` float32 [rows, n] with the stride of y and perhaps y itself; address 0: no
such. `scratch` is each thread's own, `packed.scratch_bytes(kind, k)` of it, aligned to 64 bytes
(`mul_mat_vec` needs none). Threads share the weight rows. Knows which of the other modules multiplies what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.kernels.formats import has_reader
from graphml_cpu.kernels.products import float_tiles, integer_tiles
from graphml_cpu.kernels.products.float_rows import make_float_rows
from graphml_cpu.kernels.products.float_tiles import make_float_tiles
from graphml_cpu.kernels.products.integer_rows import make_integer_rows
from graphml_cpu.kernels.products.integer_tiles import make_integer_tiles
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import FEW_ROWS, PANEL_ELEMENTS
from graphml_cpu.simd import WIDTH

PANEL_ROWS = 2 * WIDTH  # weight rows that are unpacked together


def make_rows(kind: str) -> Callable[..., Any]:
    """The inline function that multiplies a few rows; see `integer_rows`."""
    return make_integer_rows(kind) if has_reader(kind) else make_float_rows(kind)


def make_many(kind: str, tokens: int = 0, columns: int = 0) -> Callable[..., Any]:
    """The inline function that multiplies any number of rows, panel by panel; see `integer_tiles`.

    tokens: of a register tile; columns: of a panel of float weights; 0: what suits most processors.
    """
    if has_reader(kind):
        return make_integer_tiles(kind, tokens or integer_tiles.TOKENS)
    return make_float_tiles(kind, tokens or float_tiles.TOKENS, columns or PANEL_ELEMENTS)


def make_mul_mat_vec(kind: str) -> Callable[..., None]:
    """For one row of activations, or a few: the weights are read once in file order."""
    multiply = make_rows(kind)

    def mul_mat_vec(
        ith: Int,
        nth: Int,
        w: Address,
        x: Address,
        y: Address,
        residual: Address,
        bias: Address,
        n: Int,
        k: Int,
        x_stride: Int,
        y_stride: Int,
        scratch: Address,
        rows: Dim,
    ) -> None:
        begin, end = share(ith, nth, n)
        multiply(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)

    return mul_mat_vec


def make_mul_mat(kind: str, tokens: int = 0, columns: int = 0) -> Callable[..., None]:
    """For any number of rows of activations: panels of weights are unpacked and used for all rows.

    tokens, columns: as of `make_many`.
    """
    multiply_few, multiply_many = make_rows(kind), make_many(kind, tokens, columns)

    def mul_mat(
        ith: Int,
        nth: Int,
        w: Address,
        x: Address,
        y: Address,
        residual: Address,
        bias: Address,
        n: Int,
        k: Int,
        x_stride: Int,
        y_stride: Int,
        scratch: Address,
        rows: Dim,
    ) -> None:
        if rows <= FEW_ROWS:
            begin, end = share(ith, nth, n)
            multiply_few(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)
        else:
            begin, end = share(ith, nth, (n + PANEL_ROWS - 1) // PANEL_ROWS)
            multiply_many(begin, end, w, x, y, residual, bias, n, k, x_stride, y_stride, rows, scratch)

    return mul_mat
