"""A cache of the ids of words. Natural text repeats its words, so most need not be encoded again.

Knows words and ids; nothing of how words are encoded. Threads may share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

MAX_CHARACTERS: Final = 64
"""Characters of a word that is kept."""
OF_WORD: Final = 8
"""What a word counts besides its characters."""
MAX_KEPT: Final = 1 << 17
"""What the words of a generation count together: 10,000 words of five characters."""


class WordCache:
    """Encodes words with `encode_word` and remembers short ones, in two generations.

    A full generation becomes the former one, whose words are looked up once more before they are forgotten:
    the words that a text repeats stay, and a server that reads new ones for weeks keeps no more of them.
    """

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._known: dict[str, list[int]] = {}
        self._former: dict[str, list[int]] = {}
        self._n_kept = 0

    def __len__(self) -> int:
        """Words that are kept."""
        return len(self._known) + len(self._former)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of all words in order."""
        ids: list[int] = []
        known = self._known
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._found(word)
                known = self._known
            ids += found
        return ids

    def _found(self, word: str) -> list[int]:
        """The ids of a word that this generation does not have yet."""
        found = self._former.get(word)
        if found is None:
            found = self._encode_word(word)
        if len(word) <= MAX_CHARACTERS:
            self._n_kept += len(word) + OF_WORD
            if self._n_kept > MAX_KEPT:
                self._former, self._known, self._n_kept = self._known, {}, len(word) + OF_WORD
            self._known[word] = found
        return found
