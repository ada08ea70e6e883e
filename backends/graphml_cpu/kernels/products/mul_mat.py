"""The kernels of products with weights: y = x @ w.T (+ bias) (+ residual), float32 results.

`w` is [n, k] in the file's own layout, row after row; `x` is [rows, k], its rows `x_stride` bytes apart:
packed int8 rows (`graphml_cpu.packed`) for the formats that have a `CpuFormatReader`, float32 for F32, F16
and BF16; the kind `packed.BF16_PAIRS` is BF16 weights and rows packed to bfloat16. `bias` is float32 [n],
`residual` float32 [rows, n] with the stride of y and perhaps y itself; address 0: no such. `scratch` is each
thread's own, `packed.scratch_bytes(kind, k)` of it, aligned to 64 bytes.

The loops of a format are two kernels, `mul_mat_rows` for a few rows of x and `mul_mat_tiles` for many, which
multiply weight rows `begin` to `end`. What shares the rows of one product or of several among threads calls
them (`mul_mat` here, `linears`, `mul_mat_glu`), so a format's loops are compiled once. A module's loop is an
inline function `multiply(begin, end, product)`: the kernel's other parameters, a tuple in their order. Knows
which of the other modules multiplies what.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Code, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import has_reader
from graphml_cpu.kernels.products import float_tiles, integer_tiles
from graphml_cpu.kernels.products.float_rows import make_float_rows
from graphml_cpu.kernels.products.float_tiles import make_float_tiles
from graphml_cpu.kernels.products.integer_rows import make_integer_rows
from graphml_cpu.kernels.products.integer_tiles import make_integer_tiles
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import FEW_ROWS, PANEL_ELEMENTS, PASSED_ROWS
from graphml_cpu.simd import WIDTH, call_kernel

PANEL_ROWS = 2 * WIDTH  # weight rows that are unpacked together


def make_mul_mat_rows(kind: str) -> Callable[..., None]:
    """For a few rows of activations: the weights are read once in file order; see `integer_rows`."""
    multiply = make_integer_rows(kind) if has_reader(kind) else make_float_rows(kind)

    def mul_mat_rows(
        ith: Int, nth: Int, begin: Int, end: Int, w: Address, x: Address, y: Address, residual: Address,
        bias: Address, k: Int, x_stride: Int, y_stride: Int, rows: Int, scratch: Address,
    ) -> None:  # fmt: skip
        multiply(begin, end, (w, x, y, residual, bias, k, x_stride, y_stride, rows, scratch))

    return mul_mat_rows


def make_mul_mat_tiles(
    kind: str, tokens: int = 0, columns: int = 0, one_order: bool = False
) -> Callable[..., None]:
    """For any number of rows: panels of weights are unpacked and used for all rows; see `integer_tiles`.

    `begin` and `end` count PANEL_ROWS weight rows each. tokens: of a register tile; columns: of a panel of
    float weights; 0: what suits most processors. one_order: integers are added up as `mul_mat_rows` does.
    """
    if has_reader(kind):
        multiply = make_integer_tiles(kind, tokens or integer_tiles.TOKENS, one_order)
    else:
        multiply = make_float_tiles(kind, tokens or float_tiles.TOKENS, columns or PANEL_ELEMENTS)

    def mul_mat_tiles(
        ith: Int, nth: Int, begin: Int, end: Int, w: Address, x: Address, y: Address, residual: Address,
        bias: Address, n: Int, k: Int, x_stride: Int, y_stride: Int, rows: Int, scratch: Address,
    ) -> None:  # fmt: skip
        multiply(begin, end, (w, x, y, residual, bias, n, k, x_stride, y_stride, rows, scratch))

    return mul_mat_tiles


@inline
def multiply_rows(
    code: int, begin: int, end: int, w: int, x: int, y: int, residual: int, bias: int, k: int, x_stride: int,
    y_stride: int, rows: int, scratch: int,
) -> None:  # fmt: skip
    """Call the `mul_mat_rows` at an address."""
    call_kernel(code, (begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows, scratch))


@inline
def multiply_tiles(
    code: int, begin: int, end: int, w: int, x: int, y: int, residual: int, bias: int, n: int, k: int,
    x_stride: int, y_stride: int, rows: int, scratch: int,
) -> None:  # fmt: skip
    """Call the `mul_mat_tiles` at an address."""
    call_kernel(code, (begin, end, w, x, y, residual, bias, n, k, x_stride, y_stride, rows, scratch))


@inline
def multiply_all_rows(
    code: int, begin: int, end: int, w: int, x: int, y: int, residual: int, bias: int, k: int, x_stride: int,
    y_stride: int, rows: int, scratch: int,
) -> None:  # fmt: skip
    """Call the `mul_mat_rows` at an address for any number of rows, a few at a time.

    So many weight rows meet them in turn that they stay in the second cache, and the few rows in the first.
    """
    if rows <= FEW_ROWS:
        multiply_rows(code, begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows, scratch)
        return
    for first in range(begin, end, PASSED_ROWS):
        last = min(first + PASSED_ROWS, end)
        for row in range(0, rows, FEW_ROWS):
            taken, to = min(FEW_ROWS, rows - row), y + row * y_stride
            rest = residual + row * y_stride if residual != 0 else 0
            multiply_rows(
                code,
                first,
                last,
                w,
                x + row * x_stride,
                to,
                rest,
                bias,
                k,
                x_stride,
                y_stride,
                taken,
                scratch,
            )


def make_mul_mat() -> Callable[..., None]:
    """One product. Up to `few_rows`, and without `tiles` any number of rows, are multiplied as a few are."""

    def mul_mat(
        ith: Int, nth: Int, few: Code, tiles: Code, w: Address, x: Address, y: Address, residual: Address,
        bias: Address, n: Int, k: Int, x_stride: Int, y_stride: Int, scratch: Address, few_rows: Int,
        rows: Dim,
    ) -> None:  # fmt: skip
        if rows <= few_rows or tiles == 0:
            begin, end = share(ith, nth, n)
            if begin < end:
                multiply_all_rows(
                    few, begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows, scratch
                )
        else:
            begin, end = share(ith, nth, (n + PANEL_ROWS - 1) // PANEL_ROWS)
            if begin < end:
                multiply_tiles(
                    tiles, begin, end, w, x, y, residual, bias, n, k, x_stride, y_stride, rows, scratch
                )

    return mul_mat
