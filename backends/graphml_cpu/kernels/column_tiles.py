"""The register tile of products in floating point: panels of turned weights times a handful of token rows.

A panel is 2 W weight rows, turned so that one column's weights are two vectors. A tile keeps the sums of
several tokens in registers while the columns pass, so no sum crosses lanes. Knows formats only through their
decoders, and token rows as a list of addresses.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from graphml_quant import by_name
from numba import types

from graphml_cpu import target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.float_rows import ELEMENT_BYTES, make_load_weights
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.kernels.register_tiles import (
    VECTOR_BYTES,
    emit_fma,
    make_zeros,
    store_tuple,
    transpose,
)
from graphml_cpu.layouts import LISTED_BYTES, PIECE_ELEMENTS
from graphml_cpu.simd import F32, WIDTH, build, store
from graphml_cpu.simd.operation import operation
from graphml_cpu.simd.types import splat_value

TOKENS = 8 if target.current().registers == 32 else 4
COLUMN_BYTES = 2 * VECTOR_BYTES


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


def _make_listed_rows(tokens: int) -> Any:
    """An operation `(listed, left)` -> addresses of `tokens` listed rows, from `left` on the last again."""

    def listed_rows(typingctx: Any, listed: Any, left: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            last = builder.sub(args[1], build.I64(1))
            found = []
            for token in range(tokens):
                index = build.I64(token)
                bounded = builder.select(builder.icmp_signed("<", index, last), index, last)
                at = builder.add(args[0], builder.mul(bounded, build.I64(LISTED_BYTES)))
                found.append(builder.load(build.pointer(builder, at, build.I64), align=8))
            return context.make_tuple(builder, signature.return_type, found)

        return types.UniTuple(types.int64, tokens)(types.int64, types.int64), codegen

    return operation(listed_rows)


def make_tile(tokens: int) -> Any:
    """An inline function `tile(panel, columns, listed, left, offset, sums)`: a panel times `tokens` rows.

    The rows are listed, of which `left` are there; `offset` is the byte of their element that meets the
    panel's first column. Sums: the tokens' lower W weight rows, then their upper W.
    """
    listed_rows, zeros = _make_listed_rows(tokens), make_zeros(2 * tokens)

    @inline
    def tile(panel: int, columns: int, listed: int, left: int, offset: int, sums: int) -> None:
        xs = listed_rows(listed, left)
        totals = zeros()
        for column in range(columns):
            totals = add_column(panel + column * COLUMN_BYTES, xs, offset + column * 4, totals)
        store_tuple(sums, totals)

    return tile


def make_unpack(format: str) -> Any:
    """An inline function `unpack(w, row_bytes, last, columns, panel, decoded)`: W rows -> half a panel.

    Rows further than `last` bytes behind the first are replaced by the row there; `decoded` is room for W
    pieces of PIECE_ELEMENTS float32. What of the last W columns is not there is garbage in the panel.
    """
    return _make_unpack_floats(format) if format in ELEMENT_BYTES else _make_unpack_blocks(format)


def _make_unpack_floats(kind: str) -> Any:
    load_w, load_w_partial = make_load_weights(kind)
    size = ELEMENT_BYTES[kind]

    @inline
    def unpack(w: int, row_bytes: int, last: int, columns: int, panel: int, decoded: int) -> None:
        for column in range(0, columns, WIDTH):
            left = columns - column
            for row in range(WIDTH):
                at = w + min(row * row_bytes, last) + column * size
                if left >= WIDTH:
                    store(decoded + row * VECTOR_BYTES, load_w(at))
                else:
                    store(decoded + row * VECTOR_BYTES, load_w_partial(at, left))
            transpose(decoded, VECTOR_BYTES, panel + column * COLUMN_BYTES, COLUMN_BYTES)

    return unpack


def _make_unpack_blocks(format: str) -> Any:
    decode = make_decode(format)
    piece_bytes = by_name(format).bytes_for(PIECE_ELEMENTS)

    @inline
    def unpack(w: int, row_bytes: int, last: int, columns: int, panel: int, decoded: int) -> None:
        for start in range(0, columns, PIECE_ELEMENTS):
            count, piece = min(PIECE_ELEMENTS, columns - start), w + start // PIECE_ELEMENTS * piece_bytes
            for row in range(WIDTH):
                decode(piece + min(row * row_bytes, last), decoded + row * PIECE_ELEMENTS * 4, count)
            for column in range(0, count, WIDTH):
                to = panel + (start + column) * COLUMN_BYTES
                transpose(decoded + column * 4, PIECE_ELEMENTS * 4, to, COLUMN_BYTES)

    return unpack
