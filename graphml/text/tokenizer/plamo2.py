"""PLaMo 2's tokenizer (`tokenizer.ggml.model` = `plamo2`): the tokens with the highest sum of scores.

Scores count in ten-thousandths. A character in no token is its UTF-8 bytes, at a price; of equal sums the
longer first token wins. Source: PLaMo 2's `tokenization_plamo.py` and llama.cpp, which matches control tokens
that stand in plain text, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from graphml.errors import TokenizerError
from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.vocabulary import PREFIX, Vocabulary, lengths_by_first

UNKNOWN_SCORE, UNUSABLE_SCORE = -10_000_000, -20_000_000
_BYTE_ORDER_MARK: Final = "\ufeff"


class BestSumEncoder:
    """Encodes fragments of text with one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        is_byte = (vocabulary.attributes & attributes.BYTE) != 0
        hidden = (vocabulary.attributes & attributes.HIDDEN) != 0
        self._bytes = _byte_ids(vocabulary, is_byte.tolist())
        self._tokens: dict[str, tuple[int, int]] = {}  # id and score
        for index, (text, score) in enumerate(zip(vocabulary.texts, vocabulary.scores.tolist(), strict=True)):
            rounded = _rounded(score)
            if not (is_byte[index] or hidden[index]) and rounded > UNUSABLE_SCORE:
                self._tokens[text] = index, rounded
        shortest_first = lengths_by_first(self._tokens)
        self._lengths = {first: sizes[::-1] for first, sizes in shortest_first.items()}

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; they do not depend on its position. A byte order mark is dropped."""
        text = text.removeprefix(_BYTE_ORDER_MARK)
        costs = [0] * (len(text) + 1)  # of the rest of the text from each place on
        steps: list[tuple[int, int]] = [(1, -1)] * len(text)  # characters and id; -1: its bytes
        for start in range(len(text) - 1, -1, -1):
            least = None
            for length in self._lengths.get(text[start], ()):
                entry = self._tokens.get(text[start : start + length])
                if entry is None or start + length > len(text):
                    continue
                cost = costs[start + length] - entry[1]
                if least is None or cost < least:
                    least, steps[start] = cost, (length, entry[0])
            unknown = costs[start + 1] - UNKNOWN_SCORE
            if least is None or unknown < least:
                least, steps[start] = unknown, (1, -1)
            costs[start] = least
        ids, start = list[int](), 0
        while start < len(text):
            length, token = steps[start]
            ids += [token] if token >= 0 else [self._bytes[byte] for byte in text[start].encode()]
            start += length
        return ids


def _rounded(score: float) -> int:
    """Ten-thousandths, half of one away from zero."""
    if not math.isfinite(score):
        return UNUSABLE_SCORE
    return int(math.copysign(math.floor(abs(score) * 1e4 + 0.5), score))


def _byte_ids(vocabulary: Vocabulary, is_byte: Sequence[bool]) -> list[int]:
    """The token of each byte; TokenizerError where one is missing."""
    ids = {text: index for index, text in enumerate(vocabulary.texts) if is_byte[index]}
    of_bytes = [ids.get(f"<0x{byte:02X}>", ids.get(f"<0x{byte:02x}>", -1)) for byte in range(256)]
    if -1 in of_bytes:
        raise TokenizerError(f"{PREFIX}tokens: byte token <0x{of_bytes.index(-1):02X}> is not there")
    return of_bytes
