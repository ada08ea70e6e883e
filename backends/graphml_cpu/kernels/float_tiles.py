"""Panels of F32, F16 and BF16 weights times many float32 rows: the register tile of the float products.

A panel is 2 W weight rows and at most FLOAT_COLUMNS columns, transposed, so that one column's weights are
two vectors. A tile keeps the sums of several tokens in registers while the columns pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.float_rows import ELEMENT_BYTES, make_load_weights
from graphml_cpu.kernels.outputs import store_outputs
from graphml_cpu.kernels.register_tiles import (
    VECTOR_BYTES,
    emit_fma,
    make_token_addresses,
    make_zeros,
    store_tuple,
    transpose,
)
from graphml_cpu.simd import F32, WIDTH, build, load, store
from graphml_cpu.simd.operation import operation
from graphml_cpu.simd.types import splat_value

TOKENS = 8 if target.current().registers == 32 else 4
_COLUMN_BYTES = 2 * VECTOR_BYTES


@operation
def add_column(typingctx: Any, panel: Any, xs: Any, offset: Any, sums: Any) -> Any:
    """`add_column(panel, xs, offset, sums)`: one column of 2 W weights times every token's value at `offset`.

    `sums` are the tokens' lower W rows, then their upper W rows.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        panel_at, xs_at, offset_at, totals = args
        count = len(xs)
        weights = []
        for half in range(2):
            at = builder.add(panel_at, build.I64(half * VECTOR_BYTES))
            weights.append(builder.load(build.pointer(builder, at, F32.llvm_type), align=4))
        lower, upper = [], []
        for token in range(count):
            at = builder.add(builder.extract_value(xs_at, token), offset_at)
            one = builder.load(build.pointer(builder, at, ir.FloatType()), align=4)
            x = splat_value(builder, one, F32)
            lower.append(emit_fma(builder, weights[0], x, builder.extract_value(totals, token)))
            upper.append(emit_fma(builder, weights[1], x, builder.extract_value(totals, count + token)))
        return context.make_tuple(builder, signature.return_type, lower + upper)

    return sums(types.int64, xs, types.int64, sums), codegen


def _make_tile(tokens: int) -> Callable[..., Any]:
    """An inline function: a panel times `tokens` rows (past the end the last one again), stored at `out`."""
    token_addresses, zeros = make_token_addresses(tokens), make_zeros(2 * tokens)

    @inline
    def tile(panel: int, columns: int, x: int, x_stride: int, last: int, out: int) -> None:
        xs = token_addresses(x, x_stride, last)
        sums = zeros()
        for column in range(columns):
            sums = add_column(panel + column * _COLUMN_BYTES, xs, column * 4, sums)
        store_tuple(out, sums)

    return tile


def _make_unpack(kind: str) -> Callable[..., Any]:
    """An inline function `unpack(w, row_bytes, last, columns, panel, square)`: W rows -> half a panel.

    Rows further than `last` bytes behind the first are replaced by the row there; `square` is room for W x W
    float32. Columns are rounded up to W, the additional ones are zeros.
    """
    load_w, load_w_partial = make_load_weights(kind)
    size = ELEMENT_BYTES[kind]

    @inline
    def unpack(w: int, row_bytes: int, last: int, columns: int, panel: int, square: int) -> None:
        for column in range(0, columns, WIDTH):
            left = columns - column
            for row in range(WIDTH):
                at = w + min(row * row_bytes, last) + column * size
                if left >= WIDTH:
                    store(square + row * VECTOR_BYTES, load_w(at))
                else:
                    store(square + row * VECTOR_BYTES, load_w_partial(at, left))
            transpose(square, panel + column * _COLUMN_BYTES, _COLUMN_BYTES)

    return unpack


def make_float_tiles(
    kind: str, tokens: int = TOKENS, most_columns: int = packed.FLOAT_COLUMNS
) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, ..., rows, scratch)`.

    Panels begin to end (of 2 W weight rows each, `most_columns` at a time, no more than
    `packed.FLOAT_COLUMNS`) of format `kind` times all rows of activations, `tokens` of them (even, at most
    `packed.TILE_TOKENS`) in a tile.
    """
    size = ELEMENT_BYTES[kind]
    unpack = _make_unpack(kind)
    few = tokens // 2
    many_tokens, few_tokens = _make_tile(tokens), _make_tile(few)

    @inline
    def store_sums(
        out: int, taken: int, to: int, y: int, residual: int, bias: int, n: int, column: int
    ) -> None:
        for half in range(2):
            here = column + half * WIDTH
            if here < n:
                values = load(F32, out + half * taken * VECTOR_BYTES)
                store_outputs(values, n - here, y, residual, bias, here, to)

    @inline
    def multiply(
        begin: int,
        end: int,
        w: int,
        x: int,
        y: int,
        residual: int,
        bias: int,
        n: int,
        k: int,
        x_stride: int,
        y_stride: int,
        rows: int,
        scratch: int,
    ) -> None:
        row_bytes = k * size
        out = scratch + _COLUMN_BYTES * min((k + 255) // 256 * 256, packed.FLOAT_COLUMNS)
        for panel in range(begin, end):
            column = panel * 2 * WIDTH
            for start in range(0, k, most_columns):
                columns = min(k - start, most_columns)
                for half in range(2):
                    # Past the last row the last one is unpacked again, and its results are not stored.
                    row = min(column + half * WIDTH, n - 1)
                    source = w + row * row_bytes + start * size
                    last = (n - 1 - row) * row_bytes
                    unpack(source, row_bytes, last, columns, scratch + half * VECTOR_BYTES, out)
                # Later columns are added to what the first ones stored.
                plus, shift = residual, bias
                if start > 0:
                    plus, shift = y, 0
                token = 0
                while token < rows:
                    at = x + token * x_stride + start * 4
                    left = rows - token
                    taken = few if left <= few else tokens
                    if taken == few:
                        few_tokens(scratch, columns, at, x_stride, (left - 1) * x_stride, out)
                    else:
                        many_tokens(scratch, columns, at, x_stride, (left - 1) * x_stride, out)
                    for i in range(min(taken, left)):
                        to = (token + i) * y_stride
                        store_sums(out + i * VECTOR_BYTES, taken, to, y, plus, shift, n, column)
                    token += taken

    return multiply
