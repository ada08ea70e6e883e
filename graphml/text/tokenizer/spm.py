"""SentencePiece byte-pair encoding (`tokenizer.ggml.model` = `llama`): the best-scored pair merges first.

Written out, because the `tokenizers` library merges by rank: it cannot merge characters that are no tokens
themselves, nor take the leftmost of different pairs with one score, and both happen in these vocabularies.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from graphml.errors import TokenizerError
from graphml.text.tokenizer.vocabulary import PREFIX, Vocabulary
from graphml.text.tokenizer.words import WordCache

SPACE = "\u2581"


class ScoredPairEncoder:
    """Encodes fragments of text with one vocabulary and its scores."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        # Negated, for a heap that returns the smallest first.
        self._costs: list[float] = np.negative(vocabulary.scores).tolist()
        self._space_prefix = vocabulary.flags.add_space_prefix
        self._bytes = [self._byte_token(byte, vocabulary) for byte in range(256)]
        self._boundary = _boundary(vocabulary)
        self._words = WordCache(self._encode_word)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; one that begins the text or follows a special token gets a space."""
        text = text.replace(" ", SPACE)
        if after_special and self._space_prefix:
            text = SPACE + text
        return self._words.encode(self._boundary.split(text))

    def _byte_token(self, byte: int, vocabulary: Vocabulary) -> int | None:
        """The token for a byte of a character without one, else the unknown token if there is any."""
        token = self._ids.get(f"<0x{byte:02X}>")
        if token is None and byte < 0x80:
            token = self._ids.get(chr(byte))
        return token if token is not None else vocabulary.roles.unknown

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in self._merged(word):
            token = self._ids.get(symbol)
            if token is not None:
                ids.append(token)
                continue
            for byte in symbol.encode():
                token = self._bytes[byte]
                if token is None:
                    raise TokenizerError(
                        f"{PREFIX}tokens: {symbol!r} cannot be encoded: there is neither a token "
                        f"<0x{byte:02X}> nor an unknown token"
                    )
                ids.append(token)
        return ids

    def _merged(self, word: str) -> list[str]:
        """Merge neighbours, always the pair whose token scores best, the leftmost of equals."""
        symbols = list(word)
        following = list(range(1, len(symbols) + 1))
        preceding = list(range(-1, len(symbols) - 1))
        ids, costs, count = self._ids, self._costs, len(symbols)
        queue: list[tuple[float, int, int, int]] = []
        for left in range(count - 1):
            token = ids.get(symbols[left] + symbols[left + 1])
            if token is not None:
                queue.append((costs[token], left, left + 1, 2))
        heapify(queue)
        while queue:
            _, left, right, length = heappop(queue)
            # A pair is stale once one of its sides was merged with another neighbour.
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            after = following[left] = following[right]
            if after < count:
                preceding[after] = left
            for first, second in ((preceding[left], left), (left, after)):
                if first < 0 or second >= count:
                    continue
                both = symbols[first] + symbols[second]
                token = ids.get(both)
                if token is not None:
                    heappush(queue, (costs[token], first, second, len(both)))
        return [symbol for symbol in symbols if symbol]


def _boundary(vocabulary: Vocabulary) -> re.Pattern[str]:
    """Positions at which a text may be split without changing its tokens: before a space inside no token.

    Merges are tokens, so two characters that are neighbours in no token never merge.
    """
    crossing = {SPACE}
    for text in vocabulary.texts:
        if text.rfind(SPACE) > 0:
            crossing.update(before for before, after in pairwise(text) if after == SPACE)
    return re.compile(f"(?<=[^{re.escape(''.join(crossing))}])(?={SPACE})", re.DOTALL)
