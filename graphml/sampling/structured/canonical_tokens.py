"""The canonical tokens of a structure's literals: the tokenizer's own ids of the texts that may come next.

Models were trained on those. A mask of all tokens that fit lets a model spell keys and words of an enum in
letters, or in pieces that it never read. The tokenizer's own ids of every text that may come stay possible;
behind other tokens some texts do not, such as "city" behind `c` where another literal has that token. Knows
literals, tokens and masks; nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from graphml.sampling.structured.literal_texts import SPACES, ByteWalk, Literal, literal_texts
from graphml.sampling.structured.packed_masks import Bits, packed, unpacked
from graphml.sampling.structured.token_bytes import TokenBytes

_SPACES: Final = bytes(SPACES)
MAX_TOKENS: Final = 4096
"""Where more tokens may come next, text is free."""
KEPT: Final = 128
"""Masks that are kept of a structure: those of its literals come again in every text."""
KEPT_IDS: Final = 8192

Before: TypeAlias = tuple[bytes, ...]


class _Mask(NamedTuple):
    """A mask's tokens: all, the texts of those that are no control tokens, and with what these begin."""

    tokens: list[int]
    pieces: dict[int, bytes]
    begun: frozenset[bytes]


def is_narrow(bits: Bits) -> bool:
    """Whether so few tokens may come next that they may be those of literals, and more than one."""
    return 1 < int(np.bitwise_count(bits).sum()) <= MAX_TOKENS


class CanonicalTokens:
    """The canonical tokens of one structure's literals; thread-safe."""

    def __init__(self, vocabulary: TokenBytes) -> None:
        self._vocabulary = vocabulary
        self._controls = vocabulary.special | vocabulary.end_tokens
        self._ids = lru_cache(KEPT_IDS)(self._ids_behind)
        self._opened = lru_cache(KEPT)(self._opened_mask)
        self._masked = lru_cache(KEPT)(self._canonical_mask)

    def bits(self, bits: Bits, walk: ByteWalk, accepted: Sequence[int]) -> Bits:
        """Of the tokens of a mask those that begin the tokenizer's own ids of a literal, and control tokens.

        walk: the place. accepted: the tokens before it. A literal counts where its ids do not reach back into
        the token before; if none does, all count. The mask itself where text is free, and where the tokenizer
        changes the text of a literal.
        """
        data, before = bits.tobytes(), self._before(accepted)
        begun = self._opened(data).begun

        def settled(text: bytes) -> bool:
            """Whether the first token of a text ends before its last word, which more text may change."""
            if text in begun:
                return False
            first = (self._ids(before, text) or self._ids((), text))[:1]
            return any(len(self._vocabulary.pieces[token]) <= _last_border(text) for token in first)

        literals = literal_texts(walk, settled)
        canonical = self._masked(data, tuple(literals), before) if literals else None
        return bits if canonical is None else canonical

    def _ids_behind(self, before: Before, text: bytes) -> list[int]:
        """The ids of a text behind the tokens before; if it has none, behind all of these but the first."""
        ids = self._vocabulary.ids_behind(before, text)
        return ids if ids or len(before) < 2 else self._vocabulary.ids_behind(before[1:], text)

    def _opened_mask(self, data: bytes) -> _Mask:
        tokens = np.flatnonzero(unpacked(np.frombuffer(data, np.uint8), self._vocabulary.n)).tolist()
        pieces = {token: self._vocabulary.pieces[token] for token in tokens if token not in self._controls}
        begun = frozenset(piece[:n] for piece in pieces.values() for n in range(len(piece)))
        return _Mask(tokens, pieces, begun)

    def _canonical_mask(self, data: bytes, literals: tuple[Literal, ...], before: Before) -> Bits | None:
        """The tokens of a mask that begin one of these literals; None where all do."""
        tokens, pieces, _ = self._opened(data)
        texts = [literal.text for literal in literals if literal.text]
        ids: dict[bytes, list[int] | None] = {}
        is_layout = any(
            not literal.text for literal in literals
        )  # what may come with a space comes without, too
        for spaced in (False, True):
            group = [text for text in texts if (is_layout and text[0] in SPACES) is spaced]
            ids |= self._own_ids(group, before)
        if any(ids[text] is None for text in texts):
            return None
        kept = [token for token in tokens if token in self._controls]
        for literal in literals:
            if not literal.text:
                kept += self._spaced(pieces, literal.free, texts, before)
            elif own := ids[literal.text]:
                kept += _first_tokens(literal, own, pieces)
        mask = np.zeros(self._vocabulary.n, bool)
        mask[kept] = True
        bits = packed(mask)
        bits.setflags(write=False)
        return bits if mask.any() else None

    def _own_ids(self, texts: Sequence[bytes], before: Before) -> dict[bytes, list[int] | None]:
        """The ids of each text behind the tokens before: empty where they reach back, but if all do, alone.

        None for a text that the tokenizer changes.
        """
        ids: dict[bytes, list[int] | None] = {text: self._ids(before, text) for text in texts}
        alone = {text: self._ids((), text) or None for text in texts if not ids[text]}
        if len(alone) == len(texts):
            return dict(alone)
        return ids | {text: None for text, own in alone.items() if own is None}

    def _before(self, accepted: Sequence[int]) -> Before:
        """The token before a place, and those before it as far as they are spaces; none of control tokens."""
        pieces: list[bytes] = []
        for token in reversed(accepted):
            if token in self._vocabulary.special:
                break
            piece = self._vocabulary.pieces[token]
            if piece:
                pieces.insert(0, piece)
            if piece.strip(_SPACES):
                break
        return tuple(pieces)

    def _spaced(
        self, pieces: Mapping[int, bytes], free: frozenset[int], texts: Sequence[bytes], before: Before
    ) -> list[int]:
        """The tokens that begin with free whitespace: with what follows, they are the tokenizer's own.

        Runs of spaces do not go on where the tokenizer has a longer token for them, so models end them.
        """
        firsts = {text[:1] for text in texts} | {b""}
        joins = bool(before) and before[-1][-1] in SPACES
        kept = []
        for token, piece in pieces.items():
            if not piece or piece[0] not in free:
                continue
            rest = piece.lstrip(_SPACES)
            space = piece.removesuffix(rest)
            behind = firsts
            if rest:
                fitting = (text for text in texts if text.startswith(rest) or rest.startswith(text))
                behind = {max(text, rest, key=len) for text in fitting}
            is_free = not (rest or joins)
            if is_free or any(self._ids(before, space + text)[:1] == [token] for text in behind):
                kept.append(token)
        return kept


def _last_border(text: bytes) -> int:
    """Where the last run of letters and digits, or of other characters, begins in a text."""
    is_word = [byte >= 0x80 or chr(byte).isalnum() for byte in text]
    return max((i for i in range(1, len(text)) if is_word[i - 1] != is_word[i]), default=0)


def _first_tokens(literal: Literal, ids: Sequence[int], pieces: Mapping[int, bytes]) -> list[int]:
    """The tokens with which a literal of these ids may begin; a longer one may go on into free text."""
    text, n = literal.text, len(literal.text)
    kept = [ids[0]] if ids[0] in pieces else []
    if literal.free:
        kept += [
            token
            for token, piece in pieces.items()
            if len(piece) > n and piece[n] in literal.free and piece.startswith(text)
        ]
    return kept
