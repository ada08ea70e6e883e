"""A place in a grammar of llguidance that is moved by bytes, behind the tokens of a text.

Knows a matcher of llguidance over single bytes; nothing of how it is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from graphml.sampling.structured.literal_texts import UNREADABLE
from graphml.sampling.structured.packed_masks import set_bits, unpacked
from graphml.sampling.structured.token_bytes import TokenBytes

_CONTROL: Final = b"\xff"
"""Before the id of a control token in the bytes that llguidance gives; no text has this byte."""


def first_byte(vocabulary: TokenBytes) -> int:
    """The id of byte 0 behind the tokens of a vocabulary, the others behind it; a multiple of 8."""
    return -(-vocabulary.n // 8) * 8


class LlguidanceWalk:
    """A place in a grammar of llguidance that is moved by bytes, as `ByteWalk` describes."""

    def __init__(self, matcher: Any, vocabulary: TokenBytes) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._tokens: list[int] = []  # the text so far, as the matcher consumed it
        self._first = first_byte(vocabulary)
        self._bits = np.zeros((self._first + 256 + 31) // 32, np.int32)
        self._controls = np.zeros(self._first // 8, np.uint8)
        set_bits(self._controls, vocabulary.special | vocabulary.end_tokens, True)

    def catch_up(self, tokens: Sequence[int]) -> bool:
        """Be where these tokens lead; whether that is possible."""
        n = len(self._tokens)
        while n and (n > len(tokens) or self._tokens[n - 1] != tokens[n - 1]):
            n -= 1
        self.back(sum(map(self._length, self._tokens[n:])))
        for token in tokens[n:]:
            if token in self._vocabulary.special:
                self._matcher.consume_token(token)
            else:
                self.go(self._vocabulary.pieces[token])
        self._tokens = list(tokens)
        return not self._matcher.is_error()

    def _length(self, token: int) -> int:
        return 1 if token in self._vocabulary.special else len(self._vocabulary.pieces[token])

    def copy(self) -> LlguidanceWalk:
        """The same place, to go on separately."""
        copied = LlguidanceWalk(self._matcher.deep_copy(), self._vocabulary)
        copied._tokens = self._tokens
        return copied

    def forced(self) -> bytes:
        """The only bytes by which the text can go on."""
        if self._matcher.is_accepting():
            return b""
        return bytes(self._matcher.compute_ff_bytes()).partition(_CONTROL)[0]

    def ways(self) -> tuple[Sequence[int], bool]:
        """The bytes that may come next, and whether the text may stop here."""
        if self._matcher.is_error():  # which counts as stopped, too
            return UNREADABLE
        if self._matcher.is_stopped():
            return [], True
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits, n = self._bits.view(np.uint8), self._first // 8
        stops = bool(self._matcher.is_accepting() or (bits[:n] & self._controls).any())
        return np.flatnonzero(unpacked(bits[n : n + 32], 256)).tolist(), stops

    def go(self, data: bytes) -> None:
        """Go on by bytes that are allowed."""
        self._matcher.consume_tokens([self._first + byte for byte in data])

    def back(self, n: int) -> None:
        """Take back the last n bytes."""
        self._matcher.rollback(n)
