"""Rows of Q8_1 as `graphml_quant` has them and as the kernels do (`kernels/products/int8_rows.py`).

Knows both layouts; neither devices nor graphs.
"""

from __future__ import annotations

import numpy as np

from graphml.ir.op import Array

INT8_ROWS = "q8_1"
"""The dtype whose values lie in planes on a device."""
_WORDS = 9


def to_planes(rows: Array) -> Array:
    """Blocks of 36 bytes (d, s, 32 numbers; uint8 [..., groups * 36]) to nine planes of a word each."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 4 * _WORDS)
    numbers = np.ascontiguousarray(blocks[..., 4:])
    totals = numbers.view(np.int8).sum(axis=-1, dtype=np.int16)[..., None]
    scale = np.concatenate([blocks[..., :2], np.ascontiguousarray(totals).view(np.uint8)], axis=-1)
    words = np.concatenate([numbers, scale], axis=-1).view("<u4")
    return np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(np.uint8).reshape(rows.shape)


def from_planes(rows: Array) -> Array:
    """The way back; s is d times the sum, in half precision."""
    words = rows.view("<u4").reshape(*rows.shape[:-1], _WORDS, -1)
    blocks = np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(np.uint8)
    head = np.ascontiguousarray(blocks[..., 32:])
    d = head[..., :2].copy().view(np.float16).astype(np.float32)
    total = (d * head[..., 2:].copy().view(np.int16)).astype(np.float16)
    whole = np.concatenate([head[..., :2], total.view(np.uint8), blocks[..., :32]], axis=-1)
    return whole.reshape(rows.shape)
