"""Packed rows times the quantised matrices of chosen experts: what `mul_mat` does, expert by expert.

The (token, slot) pairs are grouped by expert. One with few pairs is multiplied row by row as its weights
are read; of one with many, panels are unpacked, and its pairs pass through, their rows found by address.
Experts that nobody chose are not read. All chosen experts' rows are one stretch of work, cut evenly among the
threads, whatever the tokens chose; where it is cut does not change a result. Knows pairs and experts; how
weights are multiplied is in `integer_rows` and `integer_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.experts.expert_pairs import find_begins, next_place
from graphml_cpu.kernels.formats import make_read
from graphml_cpu.kernels.formats._groups import CpuFormatReader
from graphml_cpu.kernels.products.integer_groups import finish
from graphml_cpu.kernels.products.integer_rows import make_four_rows
from graphml_cpu.kernels.products.integer_tiles import PANELS, TOKENS, make_panel_products
from graphml_cpu.kernels.products.interleaved_rows import make_interleaved_products
from graphml_cpu.kernels.products.interleaved_tokens import listed_address
from graphml_cpu.kernels.products.register_tiles import make_token_addresses
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.vector_rows import put_zeros
from graphml_cpu.layouts import PAIR_BYTES
from graphml_cpu.simd import WIDTH, extract, load_i32, load_i64, store_f32, store_i64

# Weight rows that a thread takes at a time: those of the panels that are unpacked together.
_ROWS = PANELS * WIDTH
# What unpacking them costs, in pairs.
_UNPACKING = 4
# Weight rows of an expert for which the two forms are compared: the kernel is one for all shapes.
_USUAL_ROWS = 1024


def _make_one(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function: weight rows begin to end of one matrix times the pairs at `records`, one by one.

    weights: the matrix's address, its rows, their elements and bytes.
    """
    four_rows = make_four_rows(reader)

    @inline
    def one(begin: int, end: int, weights: Any, y: int, records: int, pairs: int, scratch: int) -> None:
        w, _, k, row_bytes = weights
        for record in range(records, records + pairs * PAIR_BYTES, PAIR_BYTES):
            x, to = load_i64(record), y + load_i64(record + 8)
            for index in range(begin, end, 4):
                # Past the last row of weights the last one is multiplied again, and not stored.
                row, left = w + index * row_bytes, end - index
                w1, w2, w3 = min(1, left - 1), min(2, left - 1), min(3, left - 1)
                ws = (row, row + w1 * row_bytes, row + w2 * row_bytes, row + w3 * row_bytes)
                found = finish(four_rows(ws, x, 0, k)[0])
                for i in range(min(left, 4)):
                    store_f32(to + (index + i) * 4, extract(found, 4 * i))

    return one


@inline
def _record_offset(records: int, stride: int, y_stride: int, pair: int) -> int:
    offset: int = load_i64(records + pair * stride + 8)
    return offset


def _make_many(reader: CpuFormatReader, one_order: bool) -> Callable[..., Any]:
    """As `_make_one` for many pairs; `begin` is a multiple of _ROWS."""
    places = packed.PLACES if one_order else 1
    products = make_panel_products(
        reader, TOKENS, make_token_addresses(TOKENS, stored=True), _record_offset, places
    )

    @inline
    def many(begin: int, end: int, weights: Any, y: int, records: int, pairs: int, scratch: int) -> None:
        w, n, k, row_bytes = weights
        for start in range(0, pairs, packed.TOKENS):
            at, taken = records + start * PAIR_BYTES, min(packed.TOKENS, pairs - start)
            for first in range(begin, end, packed.PAIRS * _ROWS):
                last = min(first + packed.PAIRS * _ROWS, end)
                products(first, last, w, y, 0, 0, n, k, row_bytes, at, PAIR_BYTES, 0, taken, scratch)

    return many


def _make_multiply(kind: str, one_token: bool, one_order: bool) -> Callable[..., Any]:
    """As `_make_one`, for any number of pairs; one_token, one_order: see `make_mul_mat_id_packed`."""
    reader, few_rows = make_read(kind), packed.few_rows(kind, _USUAL_ROWS)
    one = _make_one(reader)
    if one_token:
        return one
    few = make_interleaved_products(reader, listed_address, _record_offset)
    many = _make_many(reader, one_order)

    @inline
    def multiply(begin: int, end: int, weights: Any, y: int, records: int, pairs: int, scratch: int) -> None:
        w, _, k, row_bytes = weights
        if pairs == 1:
            one(begin, end, weights, y, records, 1, scratch)
        elif pairs <= few_rows:
            few(begin, end, w, y, 0, 0, k, row_bytes, records, PAIR_BYTES, 0, pairs, scratch)
        else:
            many(begin, end, weights, y, records, pairs, scratch)

    return multiply


@inline
def _list(
    ids: int, pairs: int, n_experts: int, n_used: int, x: int, token_stride: int, slot_stride: int,
    y_stride: int, records: int,
) -> int:  # fmt: skip
    """List the pairs by expert: the address of each one's row and the offset of its results.

    Returns the address of the experts' ends in the list, int32 [n_experts + 1].
    """
    ends: int = records + pairs * PAIR_BYTES
    find_begins(ids, pairs, n_experts, ends)
    for pair in range(pairs):
        at = records + next_place(ids, pair, n_experts, ends) * PAIR_BYTES
        token = pair // n_used
        store_i64(at, x + token * token_stride + (pair - token * n_used) * slot_stride)
        store_i64(at + 8, pair * y_stride)
    return ends


@inline
def _costs(ends: int, n_experts: int, blocks: int) -> int:
    """What all chosen experts cost together, in pairs times blocks of rows."""
    total = first = 0
    for expert in range(n_experts):
        last = load_i32(ends + expert * 4)
        if last > first:
            total += blocks * (last - first + _UNPACKING)
        first = last
    return total


def make_mul_mat_id_packed(kind: str, one_token: bool, one_order: bool = False) -> Callable[..., None]:
    """y[t, u] = w[ids[t, u]] @ x[t, u], for weights of the format `kind`, which has a `CpuFormatReader`.

    w: n_experts matrices, `expert_bytes` apart, of n rows of k elements, `row_bytes` apart. ids int32
    [T, n_used], zeros for one outside 0 .. n_experts - 1. x: packed rows, `x_token_stride` bytes from token
    to token and `x_slot_stride` from slot to slot (0: the slots of a token share its row). y float32
    [T, n_used, n], rows `y_stride` bytes apart. pairs: T * n_used. scratch: this thread's own, aligned to 64:
    `packed.scratch_bytes(kind, k)` rounded up to `tile_bytes`, then `layouts.record_bytes(n_experts, pairs)`.
    one_token: made for T = 1, where hardly two pairs share an expert: without panels and scratch for them.
    one_order: the sums of a pair do not depend on how many share its expert.
    """
    multiply = _make_multiply(kind, one_token, one_order)

    def mul_mat_id_packed(
        ith: Int, nth: Int, w: Address, x: Address, ids: Address, y: Address, n_experts: Int, n_used: Int,
        n: Int, k: Int, expert_bytes: Int, row_bytes: Int, x_token_stride: Int, x_slot_stride: Int,
        y_stride: Int, tile_bytes: Int, scratch: Address, pairs: Dim,
    ) -> None:  # fmt: skip
        records = scratch + tile_bytes
        ends = _list(ids, pairs, n_experts, n_used, x, x_token_stride, x_slot_stride, y_stride, records)
        blocks = (n + _ROWS - 1) // _ROWS
        begin, end = share(ith, nth, _costs(ends, n_experts, blocks))
        # A block of rows belongs to the thread in whose share its cost begins.
        before = first = 0
        for expert in range(n_experts):
            last = load_i32(ends + expert * 4)
            if last > first:
                cost = last - first + _UNPACKING
                top = max(0, (begin - before + cost - 1) // cost)
                bottom = min(blocks, (end - before + cost - 1) // cost)
                if top < bottom:
                    matrix, at = w + expert * expert_bytes, records + first * PAIR_BYTES
                    top, bottom = top * _ROWS, min(bottom * _ROWS, n)
                    multiply(top, bottom, (matrix, n, k, row_bytes), y, at, last - first, scratch)
                before += blocks * cost
            first = last
        if first < pairs:
            begin, end = share(ith, nth, n)
            for pair in range(first, pairs):
                put_zeros(y + load_i64(records + pair * PAIR_BYTES + 8) + begin * 4, end - begin)

    return mul_mat_id_packed
