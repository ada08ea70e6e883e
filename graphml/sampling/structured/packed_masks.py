"""Masks over a vocabulary with a bit for each token: packed, changed at a token, applied to logits.

Knows bits and logits; nothing of grammars. NumPy computes without the interpreter's lock, 8 tokens a look-up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates.candidates import Floats

Bits: TypeAlias = NDArray[np.uint8]
"""Token t is bit t % 8, from the lowest on, of byte t // 8; bits behind the vocabulary do not count."""
_Bools: TypeAlias = NDArray[np.bool_]

_OF_BYTE = np.arange(256, dtype=np.uint8)[:, None]
_MOST = np.where(
    np.unpackbits(_OF_BYTE, axis=1, bitorder="little"), np.float32(np.inf), np.float32(-np.inf)
).astype(np.float32)
"""[256, 8] for each byte the highest logits that its tokens may have."""


def packed(mask: _Bools) -> Bits:
    """The bits of a mask, bool [n]."""
    return np.packbits(mask, bitorder="little")


def unpacked(bits: Bits, n: int) -> _Bools:
    """The mask of bits, bool [n]."""
    return np.unpackbits(bits, count=n, bitorder="little").view(bool)


def set_bits(bits: Bits, tokens: Iterable[int], allowed: bool) -> None:
    """Allow or refuse some tokens."""
    for token in tokens:
        if allowed:
            bits[token >> 3] |= 1 << (token & 7)
        else:
            bits[token >> 3] &= 255 ^ (1 << (token & 7))


def masked_row(row: Floats, bits: Bits) -> Floats:
    """A row of logits, float32 [n_vocab], with -inf where no bit is set, as in the padding of a vocabulary.

    NaN stays NaN, so that damaged logits are seen behind a mask, too.
    """
    most = np.take(_MOST, bits, axis=0).reshape(-1)[: len(row)]
    if len(most) < len(row):
        most = np.concatenate([most, np.full(len(row) - len(most), -np.inf, np.float32)])
    return np.minimum(row, most, out=most)
