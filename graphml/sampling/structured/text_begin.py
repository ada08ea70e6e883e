"""A text that begins with given bytes: the tokens that may spell them, and behind them any.

That is what token healing wants: the last token of a prompt is taken back, and its text given here, so that
the model chooses the tokens that it was trained on (Lundberg 2023, "The art of prompt design: prompt
boundaries and token healing"). Knows tokens' bytes; nothing of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.sampling.structured.packed_masks import Bits, packed
from graphml.sampling.structured.token_bytes import Bools, TokenBytes


class TextBegin:
    """See `Structure`. begin: the bytes; each byte of them needs a token that is it, or begins with it."""

    def __init__(self, begin: bytes, vocabulary: TokenBytes) -> None:
        self.text, self.vocabulary = begin, vocabulary
        usable = np.ones(vocabulary.n, bool)
        usable[list(vocabulary.special | vocabulary.end_tokens)] = False
        first = [piece[0] if piece else -1 for piece in vocabulary.pieces]
        self._first = np.where(usable, first, -1)
        self._masks: dict[int, Bools] = {len(begin): np.ones(vocabulary.n, bool)}
        self._bits: dict[int, Bits] = {}

    def begin(self) -> SpelledBytes:
        """The place before the first token."""
        return SpelledBytes(self, [0])

    def mask(self, at: int) -> Bools:
        """[n] the tokens that may come where so many bytes are spelled."""
        mask = self._masks.get(at)
        if mask is None:
            rest, pieces = self.text[at:], self.vocabulary.pieces
            near = np.flatnonzero(self._first == rest[0])
            fits = [pieces[i].startswith(rest) or rest.startswith(pieces[i]) for i in near.tolist()]
            mask = np.zeros(self.vocabulary.n, bool)
            mask[near[np.array(fits, bool)]] = True
            self._masks[at] = mask
        return mask

    def bits(self, at: int) -> Bits:
        """The same, a bit each."""
        if at not in self._bits:
            self._bits[at] = packed(self.mask(at))
        return self._bits[at]


class SpelledBytes:
    """How many bytes are spelled, after each of the tokens so far."""

    def __init__(self, of: TextBegin, spelled: list[int]) -> None:
        self._of, self._spelled = of, spelled

    def bits(self) -> Bits:
        """The tokens that may come next, a bit each."""
        return self._of.bits(self._spelled[-1])

    def forced_bytes(self) -> bytes:
        """None: which tokens spell the text is the model's choice."""
        return b""

    def walk(self, accepted: Sequence[int]) -> None:
        """None: which tokens spell the text is the model's choice."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        return bool(self._of.mask(self._spelled[-1])[token])

    def may_end(self) -> bool:
        """Whether all bytes are spelled."""
        return self._spelled[-1] == len(self._of.text)

    def accept(self, token: int) -> None:
        """Go on by a token that is allowed."""
        spelled = self._spelled[-1] + len(self._of.vocabulary.pieces[token])
        self._spelled.append(min(spelled, len(self._of.text)))

    def rewind(self, n: int) -> None:
        """Take back the last n tokens."""
        del self._spelled[len(self._spelled) - n :]

    def copy(self) -> SpelledBytes:
        """The same place, to go on separately."""
        return SpelledBytes(self._of, list(self._spelled))
