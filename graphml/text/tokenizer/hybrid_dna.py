"""Text with DNA in it (`tokenizer.ggml.model` = `hybriddna`): in `<dna>...</dna>` six bases are a token.

All else is byte-pair encoded. A token of six bases has U+E000 behind it in the file, so that words of the
same letters are others. Source: llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from graphml.text.tokenizer.vocabulary import Vocabulary

MARK: Final = "\ue000"
OPEN, CLOSE, OTHER = "<dna>", "</dna>", "<oov>"
SIZE: Final = 6


def unmarked(vocabulary: Vocabulary, token: int) -> str:
    """The text of a token, without the mark that those behind `<oov>` have."""
    text = vocabulary.texts[token]
    return text.removesuffix(MARK) if token > vocabulary.ids.get(OTHER, len(vocabulary.texts)) else text


class HybridDnaEncoder:
    """Encodes fragments of text with one vocabulary. words: what encodes all but DNA."""

    def __init__(self, vocabulary: Vocabulary, words: Callable[[str, bool], list[int]]) -> None:
        self._ids, self._words = vocabulary.ids, words
        self._knows = all(token in vocabulary.ids for token in (OPEN, CLOSE, OTHER))

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; they do not depend on its position."""
        ids: list[int] = []
        while self._knows and OPEN in text:
            before, _, rest = text.partition(OPEN)
            bases, closed, text = rest.partition(CLOSE)
            ids += self._words(before, after_special) if before else ()
            ids += [self._ids[OPEN], *self._of_bases(bases)]
            ids += [self._ids[CLOSE]] if closed else ()
        return ids + (self._words(text, after_special) if text else [])

    def _of_bases(self, bases: str) -> Iterator[int]:
        """The ids of sixes of bytes, the last one filled up with A; small letters count as large ones."""
        data = bases.encode().upper()
        data += b"A" * (-len(data) % SIZE)
        for start in range(0, len(data), SIZE):
            text = data[start : start + SIZE].decode("utf-8", "replace") + MARK
            yield self._ids.get(text, self._ids[OTHER])
