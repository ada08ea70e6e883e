"""Paged attention of many tokens, each by itself: for programs in which neighbours may change no bit.

A token and its query heads of one key-value head are one unit of work. They meet the chunks of positions that
decoding cuts (`attention.decode`), one after the other, so the result is that of decoding, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Float, Int, RunAddress
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.attention.chunk import make_attend_chunk
from graphml_cpu.kernels.attention.decode import make_combine_chunks
from graphml_cpu.kernels.attention.paging import chunk_size, log2_of, visible
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import MAX_CHUNKS, attention_record_bytes
from graphml_cpu.simd import load_i32


def make_attention_by_token(k_dtype: str, v_dtype: str, d_k: int, d_v: int) -> Callable[..., None]:
    """out float32 [rows, n_head, d_v], rows `out_stride` bytes apart; parameters as of `attention.decode`.

    scratch: this thread's own `attention_partial_bytes(1, n_head // n_head_kv, d_v)` bytes.
    """
    record_bytes = attention_record_bytes(d_v)
    k_bytes, v_bytes = row_bytes(k_dtype, d_k), row_bytes(v_dtype, d_v)
    attend_chunk, combine = make_attend_chunk(k_dtype, v_dtype, d_k, d_v), make_combine_chunks(d_v)

    def attention_by_token(
        ith: Int, nth: Int, q: Address, k_cache: RunAddress, v_cache: RunAddress, positions: Address,
        sequences: Address, lengths: Address, block_table: Address, sinks: Address, out: Address,
        scratch: Address, n_head: Int, n_head_kv: Int, block_size: Int, table_stride: Int, window: Int,
        causal: Int, scale: Float, softcap: Float, max_bias: Float, q_stride: Int, out_stride: Int,
        n_sequences: Dim, room: Dim, n_cells: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        group, shift = n_head // n_head_kv, log2_of(block_size)
        begin, end_unit = share(ith, nth, rows * n_head_kv)
        for unit in range(begin, end_unit):
            # Key-value heads one after the other: the keys that a token read, the next one reads again.
            head_kv = unit // rows
            row, head = unit - head_kv * rows, head_kv * group
            first, end = visible(row, positions, sequences, lengths, window, causal, n_sequences,
                                 room)  # fmt: skip
            size = chunk_size(end - first, MAX_CHUNKS)
            table = block_table + load_i32(sequences + row * 4) * table_stride * 4
            for chunk in range((end - first + size - 1) // size):
                start = first + chunk * size
                attend_chunk(
                    q + row * q_stride + head * d_k * 4,
                    k_cache + head_kv * k_bytes,
                    v_cache + head_kv * v_bytes,
                    scratch,
                    chunk,
                    start,
                    min(start + size, end),
                    k_cache + head_kv * k_bytes,
                    start + size,
                    end - 1,
                    n_cells,
                    load_i32(positions + row * 4),
                    table,
                    shift,
                    head,
                    group,
                    1,
                    n_head,
                    n_head_kv,
                    scale,
                    softcap,
                    max_bias,
                )
            for i in range(group):
                to = out + row * out_stride + (head + i) * d_v * 4
                combine(scratch + i * record_bytes, end - first, 0, 0, sinks, head + i, to)

    return attention_by_token
