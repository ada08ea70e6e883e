"""Keys and values of a block of positions, decoded to rows of scratch for the tiles of prefill.

Knows cells and formats; knows nothing of queries or softmax.
"""

from __future__ import annotations

import math
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.paging import cell_of
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.layouts import prefill_values
from graphml_cpu.simd import WIDTH, convert, load, narrow_to_bf16, store, vector, zero


@inline
def _seen_cell(position: int, start: int, table: int, shift: int, n_cells: int) -> int:
    """The cell of a position; before `start` the row of zeros, since blocks there may be another text's."""
    cell = n_cells
    if position >= start:
        cell = cell_of(position, table, shift, n_cells)
    return cell


def make_load_rows(dtype: str, d: int, row_bytes: int) -> Any:
    """`load_rows(cache, cell_bytes, n_cells, start, first, count, table, shift, out)`: rows in float32.

    Positions before `start`, which nobody sees, are zeros.
    """
    decode = make_decode(dtype)

    @inline
    def load_rows(
        cache: int, cell_bytes: int, n_cells: int, start: int, first: int, count: int, table: int, shift: int,
        out: int,
    ) -> None:  # fmt: skip
        for row in range(count):
            source = cache + _seen_cell(first + row, start, table, shift, n_cells) * cell_bytes
            decode(source, out + row * row_bytes, d)

    return load_rows


def make_load_keys_in_pairs(dtype: str, d: int) -> Any:
    """As `make_load_rows`, to rows of bfloat16 that follow each other: an int32 holds two of one position."""
    decode, lanes = make_decode(dtype), math.gcd(d, WIDTH)
    part, local_row = vector("f32", lanes), make_local_memory(d * 4)

    @inline
    def load_keys(
        cache: int, cell_bytes: int, n_cells: int, start: int, first: int, count: int, table: int, shift: int,
        out: int,
    ) -> None:  # fmt: skip
        decoded = local_row()
        for row in range(count):
            source = cache + _seen_cell(first + row, start, table, shift, n_cells) * cell_bytes
            decode(source, decoded, d)
            for i in range(0, d, lanes):
                store(out + (row * d + i) * 2, narrow_to_bf16(load(part, decoded + i * 4)))

    return load_keys


def make_load_values_in_pairs(dtype: str, d: int) -> Any:
    """As `make_load_rows`, to rows of two positions: an int32 holds an element of both, in bfloat16.

    The second of a last position alone is zero.
    """
    decode, rounded = make_decode(dtype), prefill_values(d)
    lanes = math.gcd(rounded, WIDTH)
    part, words = vector("f32", lanes), vector("u32", lanes)
    local_even, local_odd = make_local_memory(rounded * 4), make_local_memory(rounded * 4)

    @inline
    def load_values(
        cache: int, cell_bytes: int, n_cells: int, start: int, first: int, count: int, table: int, shift: int,
        out: int,
    ) -> None:  # fmt: skip
        even, odd = local_even(), local_odd()
        for row in range(0, count, 2):
            decode(cache + _seen_cell(first + row, start, table, shift, n_cells) * cell_bytes, even, d)
            if row + 1 < count:
                cell = _seen_cell(first + row + 1, start, table, shift, n_cells)
                decode(cache + cell * cell_bytes, odd, d)
            else:
                for i in range(0, rounded, lanes):
                    store(odd + i * 4, zero(part))
            for i in range(0, rounded, lanes):
                low = convert(words, narrow_to_bf16(load(part, even + i * 4)))
                high = convert(words, narrow_to_bf16(load(part, odd + i * 4)))
                store(out + (row // 2 * rounded + i) * 4, low | (high << 16))

    return load_values
