"""Paged attention with a bias for each bucket of distances (T5): a token and its heads at a time.

Reads scores and values by the tiles that attention for decoding has; knows what a bias is looked up by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.attention.chunk import CELLS_BYTES, fill_cells, whole_tiles
from graphml_cpu.kernels.attention.head_softmax import make_softmax
from graphml_cpu.kernels.attention.head_tiles import BLOCK, TILE_HEADS, make_scores, make_weigh
from graphml_cpu.kernels.attention.paging import log2_of, visible
from graphml_cpu.kernels.attention.tiles import make_local_memory
from graphml_cpu.kernels.share import Number, share
from graphml_cpu.simd import WIDTH, f32, load, load_f32, load_i32, splat, store, store_f32, vector, zero


@inline
def _add_biases(
    scores: int, count: int, distance: int, far: int, bias: int, buckets: int, scale: Number
) -> None:
    """Scores of one head and block, times `scale`, plus the head's bias for each distance; in place."""
    for i in range(count):
        bucket = load_i32(buckets + (max(-far, min(far, distance + i)) + far) * 4)
        store_f32(scores + i * 4, load_f32(scores + i * 4) * scale + load_f32(bias + bucket * 4))


def _make_ends(d_v: int) -> tuple[Any, Any]:
    """`begin(heads, out)` and `end(heads, totals, out)`: zeros first, in the end the quotients."""
    lanes = math.gcd(d_v, WIDTH)
    part = vector("f32", lanes)

    @inline
    def begin_heads(heads: int, out: int) -> None:
        for head in range(heads):
            for i in range(0, d_v, lanes):
                store(out + (head * d_v + i) * 4, zero(part))

    @inline
    def end_heads(heads: int, totals: int, out: int) -> None:
        for head in range(heads):
            factor = splat(part, f32(1.0) / load_f32(totals + head * 4))
            for i in range(0, d_v, lanes):
                at = out + (head * d_v + i) * 4
                store(at, load(part, at) * factor)

    return begin_heads, end_heads


def make_relative_attention(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Callable[..., None]:
    """out float32 [rows, n_head, d_v]; zeros for a token that sees nothing.

    As `attention_partial` has them: q, k_cache, v_cache, positions, sequences, lengths, block_table, causal,
    scale. bias float32 [buckets, n_head]; buckets int32 [2 * far + 1]: for the distances from -far to far,
    which stand for all beyond them, where in `bias` the bucket's row begins.
    """
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    scores_of, weigh = make_scores(d_k, k_dtype), make_weigh(d_v, v_dtype, d_v * 4)
    local_cells = make_local_memory(CELLS_BYTES)
    local_scores = make_local_memory(TILE_HEADS * BLOCK * 4)
    local_tops, local_totals, local_alphas = (make_local_memory((TILE_HEADS + WIDTH) * 4) for _ in range(3))
    begin_heads, end_heads = _make_ends(d_v)
    begin, soften = make_softmax(TILE_HEADS, BLOCK * 4)

    @inline
    def attend(
        heads: int, q: int, k: int, v: int, first: int, end: int, position: int, table: int, shift: int,
        n_head_kv: int, n_cells: int, far: int, bias: int, buckets: int, scale: Number, out: int,
    ) -> None:  # fmt: skip
        cells, scores = local_cells(), local_scores()
        tops, totals, alphas = local_tops(), local_totals(), local_alphas()
        begin(heads, tops, totals)
        begin_heads(heads, out)
        for block in range(first, end, BLOCK):
            count = min(BLOCK, end - block)
            fill_cells(cells, block, count, table, shift, n_cells)
            scores_of(heads, count, q, cells, k, n_head_kv * k_bytes, scores, 0)
            for i in range(heads):
                row = scores + i * BLOCK * 4
                _add_biases(row, count, block - position, far, bias + i * 4, buckets, scale)
            soften(heads, scores, count, block - position, 0, heads, f32(1.0), f32(0.0), f32(0.0), tops,
                   totals, alphas)  # fmt: skip
            weigh(heads, scores, cells, whole_tiles(count), v, n_head_kv * v_bytes, alphas, out, 0)
        if end > first:
            end_heads(heads, totals, out)

    def relative_attention(
        ith: Int, nth: Int, q: Address, k_cache: RunAddress, v_cache: RunAddress, positions: Address,
        sequences: Address, lengths: Address, block_table: Address, bias: Address, buckets: Address,
        out: Address, n_head: Int, n_head_kv: Int, block_size: Int, table_stride: Int, causal: Int, far: Int,
        scale: Float, n_sequences: Dim, room: Dim, n_cells: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        group = n_head // n_head_kv
        shift = log2_of(block_size)
        begin, end_unit = share(ith, nth, rows * n_head_kv)
        for unit in range(begin, end_unit):
            row = unit // n_head_kv
            head_kv = unit - row * n_head_kv
            first, end = visible(row, positions, sequences, lengths, 0, causal, n_sequences, room)
            table = block_table + load_i32(sequences + row * 4) * table_stride * 4
            for tile in range(0, group, TILE_HEADS):
                head = head_kv * group + tile
                attend(
                    min(TILE_HEADS, group - tile),
                    q + (row * n_head + head) * d_k * 4,
                    k_cache + head_kv * k_bytes,
                    v_cache + head_kv * v_bytes,
                    first,
                    end,
                    load_i32(positions + row * 4),
                    table,
                    shift,
                    n_head_kv,
                    n_cells,
                    far,
                    bias + head * 4,
                    buckets,
                    scale,
                    out + (row * n_head + head) * d_v * 4,
                )

    return relative_attention
