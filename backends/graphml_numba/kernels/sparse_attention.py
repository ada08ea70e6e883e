"""Sparse attention: `select_blocks` and `selected_attention`, see `graphml.ir.ops.sparse`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.attention import refuses_caches
from graphml_cpu.lowering.step import KernelCall, cache_type

from graphml.ir.node import Node
from graphml.ir.op import integer, number
from graphml.ir.shape import fixed
from graphml_numba.helpers import F32, Array, Number, helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.formats import SCRATCH, RowFormat, row_format
from graphml_numba.kernels.paged_attention import cell_of, decode_cell
from graphml_numba.kernels.running_softmax import (
    TILE,
    add_tile,
    dot,
    finish,
    score_tile,
    start,
    start_at_sinks,
)

Maker = Callable[..., Callable[..., Any]]
CHOSEN = ("n", "selection_block", "local", "block_size")


def call_select(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `select_blocks`. Missing weights are q, unread."""
    q, k, positions, sequences, table, *weights = node.inputs
    arrays = {
        "out": as_stored(node),
        "q": as_stored(q),
        "k": as_stored(k),
        "positions": as_stored(positions),
        "sequences": as_stored(sequences),
        "blocks": as_stored(table),
        "weights": as_stored(weights[0]) if weights else ArrayValue(q, (1, 1)),
    }
    rows = joined(node.shape[:2], node.name)
    attributes = {name: integer(node.attributes, name) for name in CHOSEN}
    return array_step(make(row_format(k.dtype.name), bool(weights)), arrays, rows, attributes=attributes)


@kernel_of("select_blocks", call=call_select, refuses=lambda node: cache_type(node.inputs[1]))
@functools.cache
def select_blocks(k_form: RowFormat, weighted: bool) -> Callable[..., Any]:
    """out [T, 1 or head, n]: the numbers of the blocks with the largest scores, the largest first, then -1.

    The score of a block is the largest of its positions; that of a position the product of its key with the
    head's query, or the weighted sum of all heads' products above 0.
    """
    word, decode = k_form.word, k_form.decode

    def kernel(
        out: Array, q: Array, k: Array, positions: Array, sequences: Array, blocks: Array, weights: Array,
        begin: int, end: int, n: int, selection_block: int, local: int, block_size: int,
    ) -> None:  # fmt: skip
        stored, key, s = k.view(word), np.empty(q.shape[2], F32), np.empty(SCRATCH, F32)
        for row in range(begin, end):
            t, head = row // out.shape[1], row % out.shape[1]
            table, seen = table_and_seen(positions[t], sequences[t], blocks, block_size)
            n_blocks = (seen + selection_block - 1) // selection_block
            falling = np.empty(n_blocks, F32)  # minus the scores, as the sort is ascending
            for block in range(n_blocks):
                largest = -F32(np.inf)
                for position in range(block * selection_block, min((block + 1) * selection_block, seen)):
                    decode_cell(stored, cell_of(position, table, block_size), 0, decode, key, s)
                    if weighted:
                        score = F32(0)
                        for j in range(q.shape[1]):
                            score += weights[t, j] * above_zero(dot(q[t, j], key))
                    else:
                        score = dot(q[t, head], key)
                    if largest == largest and not (score <= largest):
                        largest = score  # a NaN stays
                falling[block] = -F32(np.inf) if block >= n_blocks - local else -largest
            order = np.argsort(falling, kind="mergesort")
            for i in range(n):
                out[t, head, i] = order[i] if i < n_blocks else -1

    return kernel


@helper
def table_and_seen(position: int, sequence: int, blocks: Array, block_size: int) -> tuple[Array, int]:
    """The blocks of a token's sequence, and how many of its positions the token sees."""
    if not 0 <= sequence < blocks.shape[0]:
        return blocks[0], 0
    return blocks[sequence], max(0, min(position + 1, blocks.shape[1] * block_size))


@helper
def above_zero(x: Number) -> Number:
    """The larger of x and 0; NaN of NaN."""
    return F32(0) if x < F32(0) else x


@helper
def cells_of(chosen: Array, size: int, n_seen: int, table: Array, block_size: int) -> Array:
    """The cells of ascending blocks of `size` positions, each block once, among the first `n_seen`."""
    cells, n, before = np.empty(chosen.shape[0] * size, np.int64), 0, -1
    for block in chosen:
        if block > before:  # -1: no block
            for seen in range(block * size, min((block + 1) * size, n_seen)):
                cells[n] = cell_of(seen, table, block_size)
                n += 1
            before = block
    return cells[:n]


def call_selected(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `selected_attention`. Missing sinks are q, unread."""
    q, k, v, positions, sequences, table, selected, *sinks = node.inputs
    n_head = fixed(q.shape[1])
    # Heads that have one head of the cache and one part of the selection in common.
    together = math.gcd(n_head // fixed(k.shape[1]), n_head // fixed(selected.shape[1]))
    arrays = {
        "out": as_stored(node),
        **{name: as_stored(value) for name, value in zip("qkv", (q, k, v), strict=True)},
        "positions": as_stored(positions),
        "sequences": as_stored(sequences),
        "blocks": as_stored(table),
        "selected": as_stored(selected),
        "sinks": ArrayValue(sinks[0] if sinks else q, (n_head,)),
    }
    attributes = {
        "scale": number(node.attributes, "scale"),
        "together": together,
        "selection_block": integer(node.attributes, "selection_block"),
        "block_size": integer(node.attributes, "block_size"),
    }
    kernel = make(row_format(k.dtype.name), row_format(v.dtype.name), bool(sinks))
    rows = joined((q.shape[0], n_head // together), node.name)
    return array_step(kernel, arrays, rows, attributes=attributes)


@kernel_of("selected_attention", call=call_selected, refuses=refuses_caches)
@functools.cache
def selected_attention(k_form: RowFormat, v_form: RowFormat, has_sinks: bool) -> Callable[..., Any]:
    """out [T, head, d_v]: attention to the visible positions of the selected blocks, in ascending order."""
    k_word, v_word, decode_key, decode_value = k_form.word, v_form.word, k_form.decode, v_form.decode

    def kernel(
        out: Array, q: Array, k: Array, v: Array, positions: Array, sequences: Array, blocks: Array,
        selected: Array, sinks: Array, begin: int, end: int, scale: Number, together: int,
        selection_block: int, block_size: int,
    ) -> None:  # fmt: skip
        n_head = q.shape[1]
        stored_keys, stored_values = k.view(k_word), v.view(v_word)
        keys, values = np.empty((TILE, q.shape[2]), F32), np.empty((TILE, out.shape[2]), F32)
        scores, s = np.empty(TILE, F32), np.empty(SCRATCH, F32)
        peaks, totals = np.empty(together, F32), np.empty(together, F32)
        sums = np.empty((together, out.shape[2]), F32)
        for unit in range(begin, end):
            t, first = unit // (n_head // together), unit % (n_head // together) * together
            part, kv = first * selected.shape[1] // n_head, first * k.shape[1] // n_head
            table, seen = table_and_seen(positions[t], sequences[t], blocks, block_size)
            start(peaks, totals, sums)
            if has_sinks:
                start_at_sinks(peaks, totals, sinks[first : first + together])
            cells = cells_of(np.sort(selected[t, part]), selection_block, seen, table, block_size)
            for tile in range(0, cells.shape[0], TILE):
                n = min(TILE, cells.shape[0] - tile)
                for c in range(n):
                    decode_cell(stored_keys, cells[tile + c], kv, decode_key, keys[c], s)
                    decode_cell(stored_values, cells[tile + c], kv, decode_value, values[c], s)
                for j in range(together):
                    score_tile(q[t, first + j], keys[:n], scale, F32(0), scores[:n])
                    add_tile(scores[:n], values[:n], peaks, totals, sums, j)
            for j in range(together):
                finish(totals, sums, j, cells.shape[0] > 0, out[t, first + j])

    return kernel
