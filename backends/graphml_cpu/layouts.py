"""Sizes of the memory layouts that only this backend's kernels know, for those who plan without numba."""

from __future__ import annotations

MAX_CHUNKS = 16
"""Most chunks that one token's positions are cut into by decoding attention."""


PANEL_ROWS = 16
"""Weight rows that `mul_mat_panels` decodes together."""
PANEL_ELEMENTS = 1024
"""Elements of each of them that are decoded before they are multiplied."""


def attention_record_bytes(d_v: int, max_chunks: int = MAX_CHUNKS) -> int:
    """Attention's `partial` of one token and head: float32 maxima [16], sums [16], values [max_chunks, d_v]."""
    return (2 * MAX_CHUNKS + max_chunks * d_v) * 4


def attention_partial_bytes(rows: int, n_head: int, d_v: int, max_chunks: int = MAX_CHUNKS) -> int:
    """Attention's `partial` for that many tokens."""
    return rows * n_head * attention_record_bytes(d_v, max_chunks)


def panel_scratch_bytes(k: int) -> int:
    """The scratch per thread of `mul_mat_panels` for rows of k elements: one decoded tile, 64 KiB at most."""
    return 2 * 64 + PANEL_ROWS * min(k, PANEL_ELEMENTS) * 4  # before it, the products of one register tile
