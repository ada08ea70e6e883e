"""A cache of the ids of words. Natural text repeats its words, so most need not be encoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

MAX_WORDS: Final = 1 << 16
MAX_CHARACTERS: Final = 64


class WordCache:
    """Encodes words with `encode_word` and remembers short ones; forgets all of them when it is full."""

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._known: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of all words in order."""
        ids: list[int] = []
        known = self._known
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._encode_word(word)
                if len(word) <= MAX_CHARACTERS:
                    if len(known) >= MAX_WORDS:
                        known.clear()
                    known[word] = found
            ids += found
        return ids
