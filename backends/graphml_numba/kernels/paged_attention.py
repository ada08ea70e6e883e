"""Attention to the cells of a paged cache: `attention` and `relative_attention`.

Threads share the pairs of a head of the cache and a token, head by head, so that neighbouring tokens of a
sequence come together: a tile of cells is decoded to float32 once for all of their queries. Tiles begin at
multiples of `TILE` positions, and a query reads only cells that it sees; so its result depends neither on the
tokens beside it nor on the thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.attention import refuses_caches
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml.ir.op import integer, number
from graphml.ir.ops.attention import alibi_slopes, causal, extras
from graphml.ir.ops.relative import bucket
from graphml.ir.shape import bounds, fixed
from graphml_numba.helpers import F32, Array, Number, helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.formats import SCRATCH, RowFormat, row_format
from graphml_numba.kernels.running_softmax import TILE, add_tile, finish, score_tile, start, start_at_sinks

QUERIES = 64
"""Queries that read a tile together, at most, unless one token has more."""

Bias = Callable[[Array, int, int, Array], None]
"""bias(scores, distance, head, table): changes the scores of cells from a distance to the token on."""


# --- what is added to scores


@helper
def no_bias(scores: Array, distance: int, head: int, table: Array) -> None:
    """Leaves the scores as they are."""


@functools.cache
def alibi(n_head: int, max_bias: float) -> Bias:
    """Minus the distance times the slope of the head."""
    slopes = alibi_slopes(n_head, max_bias).astype(np.float32)

    @helper
    def bias(scores: Array, distance: int, head: int, table: Array) -> None:
        for c in range(scores.shape[0]):
            scores[c] -= slopes[head] * F32(abs(distance + c))

    return bias


@functools.cache
def by_bucket(n_buckets: int, far: int, is_causal: bool) -> Bias:
    """The number of the bucket of the distance, from table [n_buckets, head]."""
    buckets = bucket(np.arange(-far, far + 1), n_buckets, far, is_causal)  # farther ones have the last

    @helper
    def bias(scores: Array, distance: int, head: int, table: Array) -> None:
        for c in range(scores.shape[0]):
            scores[c] += table[buckets[max(0, min(distance + c + far, 2 * far))], head]

    return bias


# --- which cells a token sees


@helper
def first_and_end(
    position: int, length: int, room: int, window: int, chunk: int, is_causal: bool
) -> tuple[int, int]:
    """The visible positions of a token: [first, end). length: of its sequence, read unless causal.

    room: the positions that a row of the block table has cells for.
    """
    end, back = (position + 1, window - 1) if is_causal else (length, window // 2)
    first = 0
    if window > 0:
        first = max(0, position - back)
        end = min(end, position + back + 1)
    if chunk > 0:
        first = max(0, position // chunk * chunk)
    return first, min(end, room)


@helper
def cell_of(position: int, table: Array, block_size: int) -> Number:
    """The cell of a position; table: the blocks of its sequence."""
    return np.int64(table[position // block_size]) * block_size + position % block_size


@helper
def decode_cell(
    cells: Array, cell: int, head: int, decode: Callable[[Array, Array, Array], None], row: Array, s: Array
) -> None:
    """Row = the decoded row of a cell's head; zeros for a cell that the cache does not have."""
    if 0 <= cell < cells.shape[0]:
        decode(cells[cell, head], row, s)
    else:
        row[:] = F32(0)


@helper
def tokens_together(t: int, most: int, positions: Array, sequences: Array) -> Number:
    """How many tokens from t on follow each other in one sequence, at most `most`."""
    n = 1
    while n < most and sequences[t + n] == sequences[t] and positions[t + n] == positions[t] + n:
        n += 1
    return n


@helper
def span_of(firsts: Array, ends: Array) -> tuple[Number, Number]:
    """[first, end) of all positions that are visible to one of several tokens."""
    first, end = 0, 0
    for i in range(firsts.shape[0]):
        if firsts[i] < ends[i]:
            first = firsts[i] if end == 0 else min(first, firsts[i])
            end = max(end, ends[i])
    return first, end


# --- the kernel


def call_attention(node: Node, make: Callable[..., Callable[..., Any]]) -> KernelCall:
    """The call of the kernel. Missing lengths, sinks or bias are other arrays, unread."""
    q, k, v, positions, sequences, table, *rest = node.inputs
    node_attributes, is_causal, n_head = node.attributes, causal(node.attributes), fixed(q.shape[1])
    bias: Bias
    bias, bias_table = no_bias, ArrayValue(q, (1, 1))
    if node.op.name == "relative_attention":
        weight, rest = rest[0], rest[1:]
        bias = by_bucket(bounds(weight.shape)[0], integer(node_attributes, "max_distance"), is_causal)
        bias_table = as_stored(weight)
    elif number(node_attributes, "max_bias") > 0:
        bias = alibi(n_head, number(node_attributes, "max_bias"))
    sinks, lengths = extras([*node.inputs[:6], *rest], node_attributes)
    arrays = {
        "out": as_stored(node),
        **{name: as_stored(value) for name, value in zip("qkv", (q, k, v), strict=True)},
        "positions": as_stored(positions),
        "sequences": as_stored(sequences),
        "blocks": as_stored(table),
        "lengths": as_stored(positions if lengths is None else lengths),
        "sinks": ArrayValue(q if sinks is None else sinks, (n_head,)),
        "bias_table": bias_table,
    }
    attributes = {
        "scale": number(node_attributes, "scale"),
        "softcap": float(node_attributes.get("softcap", 0.0)),  # type: ignore[arg-type]
        **{name: int(node_attributes.get(name, 0)) for name in ("block_size", "window", "chunk")},  # type: ignore[arg-type]
        "is_causal": is_causal,
    }
    kernel = make(row_format(k.dtype.name), row_format(v.dtype.name), bias, sinks is not None)
    rows = joined((q.shape[0], k.shape[1]), node.name)
    return array_step(kernel, arrays, rows, attributes=attributes, name=f"{node.op.name}-{k.dtype.name}")


@kernel_of("attention", "relative_attention", call=call_attention, refuses=refuses_caches)
@functools.cache
def attention(k_form: RowFormat, v_form: RowFormat, bias: Bias, has_sinks: bool) -> Callable[..., Any]:
    """out [T, head, d_v]: softmax of the scores of the visible cells, times their values."""
    k_word, v_word, decode_key, decode_value = k_form.word, v_form.word, k_form.decode, v_form.decode

    def kernel(
        out: Array, q: Array, k: Array, v: Array, positions: Array, sequences: Array, blocks: Array,
        lengths: Array, sinks: Array, bias_table: Array, begin: int, end: int, scale: Number,
        softcap: Number, block_size: int, window: int, chunk: int, is_causal: bool,
    ) -> None:  # fmt: skip
        n_tokens, n_head, _ = q.shape
        stored_keys, stored_values = k.view(k_word), v.view(v_word)
        group = n_head // k.shape[1]  # heads of q for each of the cache
        most = max(1, QUERIES // group)  # tokens together
        keys, values = np.empty((TILE, q.shape[2]), F32), np.empty((TILE, out.shape[2]), F32)
        scores, s = np.empty(TILE, F32), np.empty(SCRATCH, F32)
        peaks, totals = np.empty(most * group, F32), np.empty(most * group, F32)
        sums = np.empty((most * group, out.shape[2]), F32)
        firsts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
        unit = begin
        while unit < end:
            kv, t = unit // n_tokens, unit % n_tokens
            n = tokens_together(t, min(most, end - unit, n_tokens - t), positions, sequences)
            known = 0 <= sequences[t] < blocks.shape[0]
            sequence = sequences[t] if known else 0
            table, length = blocks[sequence], 0 if is_causal else lengths[sequence]
            room = blocks.shape[1] * block_size if known else 0
            for i in range(n):
                firsts[i], ends[i] = first_and_end(positions[t + i], length, room, window, chunk, is_causal)
            first, last = span_of(firsts[:n], ends[:n])
            start(peaks, totals, sums)
            if has_sinks:
                start_at_sinks(peaks, totals, sinks[kv * group : (kv + 1) * group])
            for tile in range(first // TILE * TILE, last, TILE):
                for position in range(max(first, tile), min(last, tile + TILE)):
                    cell = cell_of(position, table, block_size)
                    decode_cell(stored_keys, cell, kv, decode_key, keys[position - tile], s)
                    decode_cell(stored_values, cell, kv, decode_value, values[position - tile], s)
                for at in range(n * group):
                    token, head = t + at // group, kv * group + at % group
                    a, b = max(firsts[token - t], tile), min(ends[token - t], tile + TILE)
                    if a < b:
                        own = scores[: b - a]
                        score_tile(q[token, head], keys[a - tile : b - tile], scale, softcap, own)
                        bias(own, a - positions[token], head, bias_table)
                        add_tile(own, values[a - tile : b - tile], peaks, totals, sums, at)
            for at in range(n * group):
                i = at // group
                finish(totals, sums, at, firsts[i] < ends[i], out[t + i, kv * group + at % group])
            unit += n

    return kernel
