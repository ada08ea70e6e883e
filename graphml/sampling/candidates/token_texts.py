"""Questions about the texts of a vocabulary's tokens: which begin with a text, contain it, or spell it.

Knows bytes of tokens; nothing of logits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates.candidates import Indices
from graphml.sampling.candidates.moment import SamplerVocabulary

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


class Breakers:
    """Texts at which repetitions end for DRY.

    tails: first token of one -> the tokens that follow it, for each of its spellings.
    """

    def __init__(self, tails: Mapping[int, Sequence[tuple[int, ...]]]) -> None:
        self.tails = tails
        size = max(tails, default=-1) + 2
        self._first, self._alone = np.zeros(size, bool), np.zeros(size, bool)
        self._first[list(tails)] = True
        self._alone[[token for token, spellings in tails.items() if () in spellings]] = True

    def alone(self, tokens: Indices) -> NDArray[np.bool_]:
        """Which of these tokens are breakers by themselves."""
        alone: NDArray[np.bool_] = self._alone[np.minimum(tokens, len(self._alone) - 1)]
        return alone

    def limit(self, window: Indices) -> int:
        """How many tokens stand behind the nearest breaker from the end; all where there is none."""
        nearest = 0, 0  # where the latest begins, counted from 1, and how many tokens follow its first
        at = np.flatnonzero(self._first[np.minimum(window, len(self._first) - 1)])
        if not len(at):
            return len(window)
        at = at[np.argsort(window[at], kind="stable")]
        tokens, starts = np.unique(window[at], return_index=True)
        for token, places in zip(tokens.tolist(), np.split(at, starts[1:]), strict=True):
            for tail in self.tails[token]:
                fits = places[(places + 1 >= nearest[0]) & (places + len(tail) < len(window))]
                for behind, wanted in enumerate(tail, 1):
                    fits = fits[window[fits + behind] == wanted]
                if len(fits):
                    nearest = max(nearest, (int(fits[-1]) + 1, len(tail)))
        return len(window) - sum(nearest)


@lru_cache(maxsize=32)
def breakers_of(vocabulary: SamplerVocabulary, texts: tuple[str, ...]) -> Breakers:
    """Every way in which tokens spell these texts, with any text before and behind; made once.

    As in llama.cpp: a token that contains the text is one alone; one that ends with a beginning of it is
    followed by the tokens of the rest, as the tokenizer encodes them.
    """
    words = _words_of(vocabulary)
    alone, tails = set[int](), dict[int, set[tuple[int, ...]]]()
    for text in {encoded.encode()[:_LONGEST_BREAKER] for encoded in texts}:
        at = words.places(text[0])
        begun: dict[int, Indices] = {}  # bytes of the text at a token's end -> the tokens
        for size in range(1, len(text)):
            ends = words.ends[at] == at + size
            begun[size] = words.owners[at[ends]]
            at = at[~ends]
            at = at[words.data[at + size] == text[size]]
        whole = set(words.owners[at].tolist())
        alone |= whole
        for size, tokens in begun.items():
            if len(tokens):
                rest = text[size:].decode("utf-8", "replace")
                tail = tuple(vocabulary.encode(rest, add_special=False)[:_LONGEST_TAIL])
                for token in set(tokens.tolist()) - whole:
                    tails.setdefault(token, set()).add(tail)
    for token in alone:
        tails.setdefault(token, set()).add(())
    return Breakers({token: sorted(spellings) for token, spellings in tails.items()})


class _Words:
    """The bytes of all tokens, each as a text of its own, behind one another.

    owners, ends: of each byte its token, and where that token's bytes end.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        sizes = np.array([len(text) for text in texts], np.int64)
        self.data = np.frombuffer(b"".join(texts) + b"\0", np.uint8)  # one more, so that an end can be read
        self.owners = np.repeat(np.arange(len(texts)), sizes)
        self.ends = np.repeat(np.cumsum(sizes), sizes)
        self._order = np.argsort(self.data[:-1], kind="stable")
        self._starts = np.searchsorted(self.data[:-1][self._order], np.arange(257))

    def places(self, byte: int) -> Indices:
        """Where a byte is."""
        return self._order[self._starts[byte] : self._starts[byte + 1]]


@lru_cache(maxsize=4)
def _words_of(vocabulary: SamplerVocabulary) -> _Words:
    return _Words([vocabulary.first_bytes(token) for token in range(vocabulary.n_vocab)])
