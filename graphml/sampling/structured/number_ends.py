"""The ends of numbers: behind 16 digits in a row no further one is in a mask, where a number may end.

JSON has no longest number, and a small model may write digits until the limit of its answer. llama.cpp's
grammars of JSON schemas have at most 16 in a row (common/json-schema-to-grammar.cpp, PRIMITIVE_RULES). Where
a schema wants more, they are allowed, and in texts any number of them is. Knows tokens and masks; nothing of
schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from graphml.sampling.structured.packed_masks import Bits, packed
from graphml.sampling.structured.token_bytes import TokenBytes

MOST_DIGITS: Final = 16
_DIGITS: Final = b"0123456789"
_BEHIND: Final = _DIGITS + b".eE,]})<>; \t\r\n"
"""Bytes that may follow a digit of a number, in JSON, in calls of functions and in tags."""

_KEPT: WeakKeyDictionary[TokenBytes, NumberEnds] = WeakKeyDictionary()


def number_ends(vocabulary: TokenBytes) -> NumberEnds:
    """Those of a vocabulary."""
    ends = _KEPT.get(vocabulary)
    if ends is None:
        ends = _KEPT[vocabulary] = NumberEnds(vocabulary)
    return ends


class NumberEnds:
    """For one vocabulary; thread-safe."""

    def __init__(self, vocabulary: TokenBytes) -> None:
        self._pieces = vocabulary.pieces  # and not the vocabulary, by which this is kept
        controls = vocabulary.special | vocabulary.end_tokens
        leading = [len(piece) - len(piece.lstrip(_DIGITS)) for piece in vocabulary.pieces]
        self._leading = np.array(leading, np.int32)
        self._of_texts = packed(
            np.array([
                token not in controls and bool(piece) and piece[0] not in _BEHIND
                for token, piece in enumerate(vocabulary.pieces)
            ])
        )  # fmt: skip

    def bits(self, bits: Bits, accepted: Sequence[int]) -> Bits:
        """A mask without tokens that make a number too long; itself, if none is left or it is of a text."""
        run = self._run(accepted)
        if not run or (bits & self._of_texts).any():
            return bits
        ended = bits & ~packed(self._leading > max(0, MOST_DIGITS - run))
        return ended if ended.any() else bits

    def _run(self, accepted: Sequence[int]) -> int:
        """How many digits the text ends with."""
        run = 0
        for token in reversed(accepted):
            piece = self._pieces[token]
            n_digits = sum(1 for _ in takewhile(_DIGITS.__contains__, reversed(piece)))
            run += n_digits
            if n_digits < len(piece):
                break
        return run
