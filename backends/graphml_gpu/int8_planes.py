"""Rows of 8 bits as `graphml.ir.activation_blocks` has them and as the kernels do (`products/int8_rows.py`).

Knows both layouts; neither devices nor graphs.
"""

from __future__ import annotations

import numpy as np

from graphml.ir.activation_blocks import ACTIVATIONS, rounded_scales
from graphml.ir.op import Array

INT8_ROWS = ACTIVATIONS
"""The dtype whose values lie in planes on a device."""
_WORDS = 9


def to_planes(rows: Array) -> Array:
    """Blocks of 36 bytes (d, 32 numbers; uint8 [..., groups * 36]) to nine planes of a word each."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 4 * _WORDS)
    numbers = np.ascontiguousarray(blocks[..., 4:])
    totals = numbers.view(np.int8).sum(axis=-1, dtype=np.int32)[..., None].view(np.uint32) & 0x1FFF
    d = np.ascontiguousarray(blocks[..., :4]).view("<f4")
    bits = rounded_scales(np.where(np.isnan(d), np.float32(np.inf), d)).view(np.uint32)
    head = (bits << 1) | totals
    words = np.concatenate([numbers, head.astype("<u4").view(np.uint8)], axis=-1).view("<u4")
    return np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(np.uint8).reshape(rows.shape)


def from_planes(rows: Array) -> Array:
    """The way back; an infinite scale, that of a group with a NaN, becomes NaN."""
    words = rows.view("<u4").reshape(*rows.shape[:-1], _WORDS, -1)
    blocks = np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(np.uint8)
    head = np.ascontiguousarray(blocks[..., 32:]).view("<u4")
    d = ((head >> 1) & 0x7FFFF000).view(np.float32)
    d = np.where(np.isinf(d), np.float32(np.nan), d).astype("<f4")
    whole = np.concatenate([d.view(np.uint8), blocks[..., :32]], axis=-1)
    return whole.reshape(rows.shape)
