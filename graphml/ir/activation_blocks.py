"""Activations of 8 bits in NumPy, dtype `q8_1`: blocks of 32, a float32 scale d and numbers q; x = d q.

The numbers and the size are those of ggml's Q8_1, whose scale and sum in half precision end at |x| = 8.3e6
and lose digits below 0.008. A scale in float32 has the range of float32, as all backends have it: a block
whose largest magnitude is below 127 / 3e38 = 4e-37 counts as zeros, one with a NaN or an infinity becomes
NaN. A product multiplies sums of q with d first: from 8e34 on it may overflow where the result would not.
d is rounded to 12 digits of two, one more than a half has, so that devices keep it beside a sum in a word;
the CPU does without. No file has such blocks. Knows arrays; nothing of ops.
"""

from __future__ import annotations

import numpy as np
from graphml_quant.layout import round_half_away

from graphml.ir.op import Array

ACTIVATIONS = "q8_1"
_BLOCK, _BYTES, _LARGEST_INVERSE = 32, 36, np.float32(3e38)


def encode_activations(x: Array) -> Array:
    """Float32 [..., n], n a multiple of 32 -> uint8 [..., n / 32 * 36]."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, _BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True, initial=0)
    finite = np.isfinite(largest)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.float32(127) / largest
    counts = finite & (inverse < _LARGEST_INVERSE)
    scale = np.where(counts, largest / np.float32(127), np.float32(0))
    numbers = round_half_away(np.where(counts, blocks, 0) * np.where(counts, inverse, 0)).astype(np.int8)
    scale = rounded_scales(scale)
    scale[~finite] = np.nan
    raw = np.concatenate([scale.astype("<f4").view(np.uint8), numbers.view(np.uint8)], axis=1)
    return raw.reshape(*x.shape[:-1], x.shape[-1] // _BLOCK * _BYTES)


def rounded_scales(scale: Array) -> Array:
    """Float32 rounded to 12 significant bits, to nearest even."""
    bits = np.ascontiguousarray(scale, np.float32).view(np.uint32)
    kept = bits + np.uint32(0x7FF) + ((bits >> np.uint32(12)) & np.uint32(1))
    return (kept & np.uint32(0xFFFFF000)).view(np.float32)


def decode_activations(raw: Array) -> Array:
    """The way back, as far as numbers of 8 bits go."""
    blocks = np.ascontiguousarray(raw).reshape(-1, _BYTES)
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    values = np.ascontiguousarray(blocks[:, 4:]).view(np.int8) * scale.astype(np.float32)
    return values.reshape(*raw.shape[:-1], raw.shape[-1] // _BYTES * _BLOCK)
