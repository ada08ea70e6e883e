"""Questions about the texts of a vocabulary's tokens: which begin with a text, contain it, or spell it.

Knows bytes of tokens; nothing of logits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from graphml.sampling.candidates.candidates import Indices
from graphml.sampling.candidates.moment import SamplerVocabulary

Breakers: TypeAlias = Mapping[int, Sequence[tuple[int, ...]]]
"""First token of a breaker -> the tokens that follow it, for each of its spellings."""
_LONGEST_BREAKER, _LONGEST_TAIL = 40, 20
"""Bytes and tokens of a breaker that count, as in llama.cpp."""


class TokenTexts:
    """The texts of a vocabulary's tokens, those of control tokens empty, sorted once."""

    def __init__(self, vocabulary: SamplerVocabulary) -> None:
        n = vocabulary.n_vocab
        self._texts = [b"" if vocabulary.is_special(i) else vocabulary.piece_bytes(i) for i in range(n)]
        order = sorted(range(n), key=self._texts.__getitem__)
        self._sorted, self._ids = [self._texts[i] for i in order], np.array(order, np.int64)
        self._inside: dict[bytes, Indices] = {}

    def text(self, token: int) -> bytes:
        """The bytes of a token; none for a control token, or an id that is none."""
        return self._texts[token] if 0 <= token < len(self._texts) else b""

    def that_begin_with(self, text: bytes) -> Indices:
        """The tokens that begin with a text, int64 [n]."""
        first = bisect_left(self._sorted, text)
        last = bisect_left(self._sorted, True, first, key=lambda entry: entry[: len(text)] > text)
        return self._ids[first:last]

    def with_inside(self, text: bytes) -> Indices:
        """The tokens that contain a text, int64 [n]; looked for once."""
        if text not in self._inside:
            if len(self._inside) > 1000:
                self._inside.clear()
            matches = [i for i, token_text in enumerate(self._texts) if text in token_text]
            self._inside[text] = np.array(matches, np.int64)
        return self._inside[text]

    def end_of(self, history: Sequence[int], count: int) -> bytes:
        """The last bytes of the history's text, `count` of them where it has as many."""
        parts: list[bytes] = []
        missing, at = count, len(history)
        while missing > 0 and at > 0:
            at -= 1
            parts.append(self.text(int(history[at])))
            missing -= len(parts[-1])
        return b"".join(reversed(parts))[-count:] if count else b""


@lru_cache(maxsize=4)
def texts_of(vocabulary: SamplerVocabulary) -> TokenTexts:
    """The texts of its tokens; made once."""
    return TokenTexts(vocabulary)


@lru_cache(maxsize=32)
def breakers_of(vocabulary: SamplerVocabulary, texts: tuple[str, ...]) -> Breakers:
    """Every way in which tokens spell these texts, with any text before and behind; made once.

    As in llama.cpp: a token that contains the text is one alone; one that ends with a beginning of it is
    followed by the tokens of the rest, as the tokenizer encodes them.
    """
    breakers: dict[int, list[tuple[int, ...]]] = {}
    words = _first_bytes(vocabulary)
    for text in (encoded.encode()[:_LONGEST_BREAKER] for encoded in texts):
        first = text[:1]
        for token, word in enumerate(words):
            if first not in word:
                continue
            for tail in _tails(word, text, vocabulary):
                if tail not in breakers.setdefault(token, []):
                    breakers[token].append(tail)
    return breakers


@lru_cache(maxsize=4)
def _first_bytes(vocabulary: SamplerVocabulary) -> list[bytes]:
    return [vocabulary.first_bytes(token) for token in range(vocabulary.n_vocab)]


def _tails(word: bytes, text: bytes, vocabulary: SamplerVocabulary) -> list[tuple[int, ...]]:
    if text in word:
        return [()]
    ends = [size for size in range(1, min(len(word), len(text) - 1) + 1) if word.endswith(text[:size])]
    rests = [text[size:].decode("utf-8", "replace") for size in ends]
    return [tuple(vocabulary.encode(rest, add_special=False)[:_LONGEST_TAIL]) for rest in rests]
