"""A cache of the ids of words. Natural text repeats its words, so most need not be encoded again.

Knows words and ids; nothing of how words are encoded. Threads may share one: at worst the bytes
of a word are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from sys import getsizeof
from typing import Final

MAX_CHARACTERS: Final = 64
"""Characters of a word that is kept."""
MAX_BYTES: Final = 1 << 22
"""What newer and older words may each take: 14,000 words of two ids."""
ENTRY_BYTES: Final = 100
"""What an entry of a dict takes, with the room that a dict leaves free."""
ID_BYTES: Final = 32
"""What an integer takes besides its place in a list."""


class WordCache:
    """Encodes words with `encode_word` and remembers short ones.

    Where newer words have taken `MAX_BYTES`, they become the older ones, and the former older ones are
    forgotten, but for those that were met again: what a text repeats stays, and new words for weeks take no
    more memory.
    """

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._newer: dict[str, list[int]] = {}
        self._older: dict[str, list[int]] = {}
        self._newer_bytes = 0

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of all words in order."""
        ids: list[int] = []
        newer = self._newer
        for word in words:
            word_ids = newer.get(word)
            if word_ids is None:
                word_ids = self._renewed(word)
                newer = self._newer
            ids += word_ids
        return ids

    def _renewed(self, word: str) -> list[int]:
        """The ids of a word that is not among the newer ones; it is afterwards, if it is short."""
        ids = self._older.get(word)
        if ids is None:
            ids = self._encode_word(word)
        if len(word) <= MAX_CHARACTERS:
            taken = getsizeof(word) + getsizeof(ids) + ID_BYTES * len(ids) + ENTRY_BYTES
            if self._newer_bytes + taken > MAX_BYTES:
                self._older, self._newer, self._newer_bytes = self._newer, {}, 0
            self._newer[word] = ids
            self._newer_bytes += taken
        return ids
