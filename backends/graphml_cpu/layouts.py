"""Sizes of the memory layouts that only this backend's kernels know, for those who plan without numba."""

from __future__ import annotations

MAX_CHUNKS = 16
"""Most chunks that one token's positions are cut into by decoding attention."""


def attention_record_bytes(d_v: int, max_chunks: int = MAX_CHUNKS) -> int:
    """One token and head of attention's `partial`: float32 maxima [16], sums [16], values [max_chunks, d_v]."""
    return (2 * MAX_CHUNKS + max_chunks * d_v) * 4


def attention_partial_bytes(rows: int, n_head: int, d_v: int, max_chunks: int = MAX_CHUNKS) -> int:
    """Attention's `partial` for that many tokens."""
    return rows * n_head * attention_record_bytes(d_v, max_chunks)


def packed_bytes(k: int) -> int:
    return k // 32 * 40


def scratch_bytes(kind: str, k: int) -> int:
    return 0


def panel_scratch_bytes(k: int) -> int:
    return 0
