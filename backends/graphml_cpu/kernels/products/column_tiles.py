"""The register tile of products in floating point: panels of transposed weights times a few token rows.

A panel is 2 W weight rows, transposed so that one column's weights are two vectors. A tile keeps the sums of
several tokens in registers while the columns pass, so no sum crosses lanes. Where pairs of bfloat16 are
multiplied (`packed.BF16_PAIRS`), a column is a pair: two weights of each row, as the file has them, and two
values of a token. Knows formats only through their decoders, and token rows as a list of addresses.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from graphml_quant import by_name

from graphml_cpu import target
from graphml_cpu.frontend import inline, types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.kernels.products.float_terms import TERMS
from graphml_cpu.kernels.products.register_tiles import VECTOR_BYTES, make_zeros, store_tuple, transpose
from graphml_cpu.layouts import CHUNK_ELEMENTS, RECORD_BYTES
from graphml_cpu.simd import F32, I32, WIDTH, build, store
from graphml_cpu.simd.bfloats import emit_dot2
from graphml_cpu.simd.types import splat_value

TOKENS = 8 if target.current().registers == 32 else 4
COLUMN_BYTES = 2 * VECTOR_BYTES


def _make_add_column(pairs: bool) -> Any:
    """An operation `add_column(panel, xs, offset, sums)`: a column of 2 W weights times every token's value.

    The value, or pair, is that at `offset`; `sums` are the tokens' lower W rows, then their upper W rows.
    """
    kind = I32 if pairs else F32

    def add_column(panel: Any, xs: Any, offset: Any, sums: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> Any:
            panel_at, xs_at, offset_at, totals = args
            count = len(xs)
            weights = []
            for half in range(2):
                at = builder.add(panel_at, build.I64(half * VECTOR_BYTES))
                weights.append(builder.load(build.pointer(builder, at, kind.llvm_type), align=4))
            totals_now = [builder.extract_value(totals, index) for index in range(2 * count)]
            for token in range(count):
                at = builder.add(builder.extract_value(xs_at, token), offset_at)
                element = builder.load(build.pointer(builder, at, kind.llvm_element), align=4)
                x = splat_value(builder, element, kind)
                for half, place in enumerate((token, count + token)):
                    if pairs:
                        totals_now[place] = emit_dot2(builder, totals_now[place], weights[half], x)
                    else:
                        totals_now[place] = build.multiply_add(builder, weights[half], x, totals_now[place])
            return tuple(totals_now)

        return sums(types.int64, xs, types.int64, sums), emit

    return operation(add_column)


def _make_row_addresses(tokens: int) -> Any:
    """An operation `(records, left, offset)` -> `offset` behind the rows of `tokens` records.

    From `left` on it is the last row.
    """

    def row_addresses(records: Any, left: Any, offset: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> Any:
            last = builder.sub(args[1], build.I64(1))
            addresses = []
            for token in range(tokens):
                index = build.I64(token)
                bounded = builder.select(builder.icmp_signed("<", index, last), index, last)
                at = builder.add(args[0], builder.mul(bounded, build.I64(RECORD_BYTES)))
                row = builder.load(build.pointer(builder, at, build.I64), align=8)
                addresses.append(builder.add(row, args[2]))
            return tuple(addresses)

        return types.UniTuple(types.int64, tokens)(types.int64, types.int64, types.int64), emit

    return operation(row_addresses)


def make_tile(tokens: int, pairs: bool = False) -> Any:
    """An inline function `tile(panel, columns, records, left, offset, sums)`: a panel times `tokens` rows.

    The rows are those of `left` records; `offset` is the byte of their element that meets the
    panel's first column. Sums: the tokens' lower W weight rows, then their upper W. pairs: columns of pairs.
    """
    row_addresses, zeros = _make_row_addresses(tokens), make_zeros(2 * tokens)
    add_column = _make_add_column(pairs)

    @inline
    def tile(panel: int, columns: int, records: int, left: int, offset: int, sums: int) -> None:
        xs = row_addresses(records, left, offset)
        totals = zeros()
        # One counter for all rows, where LLVM would make one for each (decision 92).
        for at in range(0, columns * 4, 4):
            totals = add_column(panel + at * (COLUMN_BYTES // 4), xs, at, totals)
        store_tuple(sums, totals)

    return tile


def make_unpack(format: str) -> Any:
    """An inline function `unpack(w, row_bytes, last, columns, panel, decoded)`: W rows -> half a panel.

    Rows further than `last` bytes behind the first are replaced by the row there; `decoded` is room for W
    chunks of CHUNK_ELEMENTS float32; `columns` counts elements. What of the last W columns is not there is
    garbage in the panel; the second half of a pair that is not there is zero.
    """
    return _make_unpack_floats(format) if format in TERMS else _make_unpack_blocks(format)


def _make_unpack_floats(kind: str) -> Any:
    load_w, load_w_partial = TERMS[kind].load_w, TERMS[kind].load_w_partial
    size, wide, as_stored = TERMS[kind].weight_bytes, TERMS[kind].elements, TERMS[kind].as_stored

    @inline
    def unpack(w: int, row_bytes: int, last: int, columns: int, panel: int, decoded: int) -> None:
        to = panel
        for column in range(0, columns, wide):
            left = columns - column
            if as_stored and left >= wide and (WIDTH - 1) * row_bytes <= last:
                transpose(w + column * size, row_bytes, to, COLUMN_BYTES)
            else:
                at = w + column * size
                if left >= wide:
                    for row in range(WIDTH):
                        store(decoded + row * VECTOR_BYTES, load_w(at + min(row * row_bytes, last)))
                else:
                    for row in range(WIDTH):
                        part = load_w_partial(at + min(row * row_bytes, last), left)
                        store(decoded + row * VECTOR_BYTES, part)
                transpose(decoded, VECTOR_BYTES, to, COLUMN_BYTES)
            to += WIDTH * COLUMN_BYTES

    return unpack


def _make_unpack_blocks(format: str) -> Any:
    decode = make_decode(format)
    chunk_bytes = by_name(format).bytes_for(CHUNK_ELEMENTS)

    @inline
    def unpack(w: int, row_bytes: int, last: int, columns: int, panel: int, decoded: int) -> None:
        for start in range(0, columns, CHUNK_ELEMENTS):
            count, chunk = min(CHUNK_ELEMENTS, columns - start), w + start // CHUNK_ELEMENTS * chunk_bytes
            for row in range(WIDTH):
                decode(chunk + min(row * row_bytes, last), decoded + row * CHUNK_ELEMENTS * 4, count)
            for column in range(0, count, WIDTH):
                to = panel + (start + column) * COLUMN_BYTES
                transpose(decoded + column * 4, CHUNK_ELEMENTS * 4, to, COLUMN_BYTES)

    return unpack
