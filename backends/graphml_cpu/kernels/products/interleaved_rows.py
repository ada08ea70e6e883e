"""Rows of quantised weights times packed activations, from two rows of activations up to some tens.

Weights are read once: of ROWS rows each group of 128 columns is unpacked and stays in registers while all
tokens pass, two at a time (`interleaved_sets`). All columns pass at once, unless the tokens would fill the
second cache. Knows what a `CpuFormatReader` says; nothing of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, F32x16
from graphml_cpu.kernels.products.half_groups import ELEMENTS, make_add_half_group, takes_half_groups
from graphml_cpu.kernels.products.integer_groups import make_read_rows
from graphml_cpu.kernels.products.integer_panels import ROW_GROUP_BYTES
from graphml_cpu.kernels.products.interleaved_sets import make_add_tokens, make_load_set, make_put_set
from graphml_cpu.kernels.products.interleaved_tokens import make_interleave_token, token_bytes
from graphml_cpu.kernels.products.outputs import AHEAD, store_outputs
from graphml_cpu.simd import F32, WIDTH, load, prefetch_near, shuffle_by, shuffle_pair_by, store, zero

# Sets of four rows of weights in registers, and rows of weights that pass the tokens' columns together.
SETS = 2
ROWS = 4 * SETS
_ROWS_AT_ONCE = 64
_SUM_BYTES = 64
# Of the four sums of each of four rows, and of four others: sums 0 and 2 of all, then 1 and 3.
_early, _late = (
    shuffle_pair_by(
        [lane + 4 * quarter for quarter in range(4) for lane in (first, first + 2, 16 + first, 18 + first)]
    )
    for first in (0, 1)
)
_neighbours = shuffle_by([lane ^ 1 for lane in range(16)])
_rows_in_order = shuffle_by((0, 4, 8, 12, 2, 6, 10, 14))


def _make_add_group(reader: CpuFormatReader, rest: bool = False) -> Callable[..., Any]:
    """An inline function `add(buffer, first, second, group, at, tokens, sums)`: a group of ROWS rows.

    What `make_load_set` wants: of the rows at `buffer`, their units' addresses, four and four, and `group`.
    The tokens' groups are at `at`; sums: two vectors for each token.
    """
    load_set, size = make_load_set(reader, rest), token_bytes(reader)
    add_two, add_one = make_add_tokens(reader)

    @inline
    def add(buffer: int, first: Any, second: Any, group: int, at: int, tokens: int, sums: int) -> None:
        rows = load_set(buffer, first, group)
        others = load_set(buffer + 4 * packed.UNIT_ROW_BYTES, second, group)
        for _ in range(tokens // 2):
            totals = (
                load(F32x16, sums), load(F32x16, sums + 64),
                load(F32x16, sums + 128), load(F32x16, sums + 192),
            )  # fmt: skip
            a, b, c, d = add_two(rows, others, at, totals)
            store(sums, a)
            store(sums + 64, b)
            store(sums + 128, c)
            store(sums + 192, d)
            at += 2 * size
            sums += 256
        if tokens % 2:
            a, b = add_one(rows, others, at, (load(F32x16, sums), load(F32x16, sums + 64)))
            store(sums, a)
            store(sums + 64, b)

    return add


@inline
def _four_rows(w: int, row: int, row_bytes: int, last: int) -> Any:
    """Addresses of four rows from number `row` on; past the last one, `last` bytes behind w, that one."""
    at, third = row * row_bytes, (row + 2) * row_bytes
    second, fourth = w + min(at + row_bytes, last), w + min(third + row_bytes, last)
    return w + min(at, last), second, w + min(third, last), fourth


def _make_add_rest(reader: CpuFormatReader) -> Callable[..., Any]:
    """As `_make_add_group`, for `group` blocks that are left of rows."""
    whole = _make_add_group(reader, True)
    if not takes_half_groups(reader):
        return whole
    half, most = make_add_half_group(reader), ELEMENTS // reader.block_elements

    @inline
    def add(buffer: int, first: Any, second: Any, blocks: int, at: int, tokens: int, sums: int) -> None:
        if blocks <= most:
            half(buffer, first, second, blocks, at, tokens, sums)
        else:
            whole(buffer, first, second, blocks, at, tokens, sums)

    return add


def _make_fetch(unit_bytes: int) -> Callable[..., Any]:
    """An inline function `fetch(w, row_bytes, last, offset, whole_rows)`: what follows the units at `offset`.

    Whole rows are one stretch of memory: it is fetched in its order, whatever row a line is of. Of parts of
    rows the same columns, ROWS further on.
    """
    lines, lines_of_all = (unit_bytes + 63) // 64, (ROWS * unit_bytes + 63) // 64

    @inline
    def fetch(w: int, row_bytes: int, last: int, offset: int, whole_rows: bool) -> None:
        if whole_rows:
            for line in range(lines_of_all):
                prefetch_near(w + offset * ROWS + AHEAD + 64 * line)
        else:
            for row in range(ROWS):
                for line in range(lines):
                    prefetch_near(w + min(row * row_bytes, last) + offset + ROWS * row_bytes + 64 * line)

    return fetch


def _make_add_columns(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function `add(w, row_bytes, last, first, end, k, at, tokens, sums, buffer)`.

    Groups `first` to `end` of ROWS rows of weights from w on (those further than `last` bytes behind it are
    the row there) times those of all tokens, which begin at `at`.
    """
    put, add_group, add_rest = make_put_set(reader), _make_add_group(reader), _make_add_rest(reader)
    read, read_rest = make_read_rows(reader)
    unit_bytes, elements, block = reader.unit_bytes, reader.groups * packed.GROUP, reader.block_elements
    size, groups, set_bytes = token_bytes(reader), reader.groups, 4 * packed.UNIT_ROW_BYTES
    fetch = _make_fetch(unit_bytes)

    @inline
    def read_all(w: int, row_bytes: int, last: int, offset: int, buffer: int) -> None:
        for part in range(SETS):
            put(buffer + part * set_bytes, read(_four_rows(w + offset, 4 * part, row_bytes, last), 0))

    @inline
    def units(
        w: int, row_bytes: int, last: int, first: int, end: int, all_groups: int, at: int, tokens: int,
        sums: int, buffer: int,
    ) -> None:  # fmt: skip
        whole_rows = first == 0 and end == all_groups
        for unit in range(first // groups, end // groups):
            offset = unit * unit_bytes
            fetch(w, row_bytes, last, offset, whole_rows)
            read_all(w, row_bytes, last, offset, buffer)
            ws = _four_rows(w + offset, 0, row_bytes, last)
            others = _four_rows(w + offset, 4, row_bytes, last)
            for group in range(groups):
                add_group(buffer + group * ROW_GROUP_BYTES, ws, others, group, at, tokens, sums)
                at += tokens * size

    @inline
    def units_and_rest(
        w: int, row_bytes: int, last: int, first: int, end: int, k: int, at: int, tokens: int, sums: int,
        buffer: int,
    ) -> None:  # fmt: skip
        whole = k // elements
        units(w, row_bytes, last, first, min(end, whole), whole, at, tokens, sums, buffer)
        if end > whole:
            left, offset = (k - whole * elements) // block, whole * unit_bytes
            fetch(w, row_bytes, last, offset, first == 0)
            ws = _four_rows(w + offset, 0, row_bytes, last)
            others = _four_rows(w + offset, 4, row_bytes, last)
            put(buffer, read_rest(ws, 0, left))
            put(buffer + set_bytes, read_rest(others, 0, left))
            add_rest(buffer, ws, others, left, at + (whole - first) * tokens * size, tokens, sums)

    @inline
    def only_units(
        w: int, row_bytes: int, last: int, first: int, end: int, k: int, at: int, tokens: int, sums: int,
        buffer: int,
    ) -> None:  # fmt: skip
        units(w, row_bytes, last, first, end, k // packed.GROUP, at, tokens, sums, buffer)

    return only_units if reader.read_rest is None else units_and_rest


@inline
def _begin_sums(sums: int, tokens: int) -> None:
    """Zeros for ROWS rows of weights times each token."""
    for i in range(tokens):
        store(sums + i * SETS * _SUM_BYTES, zero(F32x16))
        store(sums + i * SETS * _SUM_BYTES + _SUM_BYTES, zero(F32x16))


@inline
def _put_results(sums: int, to: int, tokens: int) -> None:
    """The products of ROWS rows of weights, (0 + 1) + (2 + 3) of the sums of each, for each token."""
    for _ in range(tokens):
        a, b = load(F32x16, sums), load(F32x16, sums + _SUM_BYTES)
        both = _early(a, b) + _late(a, b)
        store(to, _rows_in_order(both + _neighbours(both)))
        sums += SETS * _SUM_BYTES
        to += _ROWS_AT_ONCE * 4


def make_interleaved_products(
    reader: CpuFormatReader, address_of: Callable[..., Any], offset_of: Callable[..., Any]
) -> Callable[..., Any]:
    """An inline function `products(begin, end, w, y, residual, bias, k, ..., scratch)`.

    Weight rows begin to end of w, `row_bytes` apart, times `tokens` rows: token t's at
    `address_of(x, x_stride, t)`, its results to the row of y, and on top of the row of the residual, at byte
    `offset_of(x, x_stride, y_stride, t)`. scratch: `packed.interleaved_scratch_bytes`.
    """
    interleave, add_columns, size = (
        make_interleave_token(reader),
        _make_add_columns(reader),
        token_bytes(reader),
    )

    @inline
    def products(
        begin: int, end: int, w: int, y: int, residual: int, bias: int, k: int, row_bytes: int, x: int,
        x_stride: int, y_stride: int, tokens: int, scratch: int,
    ) -> None:  # fmt: skip
        groups = (k + packed.GROUP - 1) // packed.GROUP
        results = scratch + ROWS * packed.UNIT_ROW_BYTES
        all_sums = results + tokens * _ROWS_AT_ONCE * 4
        at = all_sums + tokens * _ROWS_AT_ONCE * 16
        for token in range(tokens):
            interleave(address_of(x, x_stride, token), groups, at + token * size, tokens * size)
        # Two groups are the unit of some formats.
        at_once = max(packed.INTERLEAVED_CACHE // (tokens * size), 2) // 2 * 2
        set_sums = tokens * SETS * _SUM_BYTES
        # Where all columns are taken at once sums are not kept beyond their rows of weights.
        step = set_sums if at_once < groups else 0
        for top in range(begin, end, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, end - top)
            for first in range(0, groups, at_once):
                stop, sums = min(first + at_once, groups), all_sums
                for index in range(0, count, ROWS):
                    if first == 0:
                        _begin_sums(sums, tokens)
                    # Past the last row of weights the last one is multiplied again, and not stored.
                    last = (end - 1 - top - index) * row_bytes
                    columns = at + first * tokens * size
                    row = w + (top + index) * row_bytes
                    add_columns(row, row_bytes, last, first, stop, k, columns, tokens, sums, scratch)
                    if stop == groups:
                        _put_results(sums, results + index * 4, tokens)
                    sums += step
            for token in range(tokens):
                offset = offset_of(x, x_stride, y_stride, token)
                for lane in range(0, count, WIDTH):
                    values = load(F32, results + (token * _ROWS_AT_ONCE + lane) * 4)
                    store_outputs(values, count - lane, y, residual, bias, top + lane, offset)

    return products
