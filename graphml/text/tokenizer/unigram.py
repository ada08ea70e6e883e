"""Unigram (`tokenizer.ggml.model` = `t5`): the tokens whose scores add up best, after normalising the text.

Written out, because the `tokenizers` library matches control tokens in plain text, takes the unknown
token's score from all tokens where only normal ones count, and normalises by grapheme where SentencePiece
takes the longest prefix: by a double array that maps prefixes to replacements (`Charsmap`).
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphml.errors import TokenizerError
from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.vocabulary import PREFIX, Vocabulary, lengths_by_first
from graphml.weights import Metadata

KEY: Final = "tokenizer.ggml.precompiled_charsmap"
MAX_PREFIX: Final = 256  # bytes; real keys have a dozen, a hostile table must not make the search endless


@dataclass(frozen=True)
class Charsmap:
    """The table: units of the double array and the replacement texts."""

    units: Sequence[int]
    replacements: bytes

    def longest(self, text: bytes, at: int) -> tuple[bytes, int] | None:
        """Return the replacement of the longest prefix of text[at:], and its end; None if none is known."""
        end, place = at, 0
        node = _base(self._unit(0))
        for position in range(at, min(len(text), at + MAX_PREFIX)):
            byte = text[position]
            node ^= byte
            unit = self._unit(node)
            if byte == 0 or unit & 0x8000_00FF != byte:
                break
            node ^= _base(unit)
            if unit & 0x100:
                end, place = position + 1, self._unit(node) & 0x7FFF_FFFF
        if end == at:
            return None
        stop = self.replacements.find(0, place)
        if stop < 0:
            raise TokenizerError(f"{KEY}: no text ends after byte {place} of {len(self.replacements)}")
        return self.replacements[place:stop], end

    def _unit(self, index: int) -> int:
        if index >= len(self.units):
            raise TokenizerError(f"{KEY}: unit {index} is wanted, the table has {len(self.units)}")
        return self.units[index]


def _base(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def read_charsmap(values: Sequence[int]) -> Charsmap:
    """Make a table from its bytes, signed or not; TokenizerError if they are cut short."""
    blob = np.asarray(values, np.int64).astype(np.uint8).tobytes()
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 4 or not 4 <= size < len(blob) - 4:
        raise TokenizerError(
            f"{KEY}: a table of {size} bytes and texts behind it are wanted, got {len(blob)} bytes in all"
        )
    units = np.frombuffer(blob, "<u4", size // 4, offset=4)
    return Charsmap(units.tolist(), blob[4 + size :])


UNKNOWN_PENALTY = 10.0
SPACE = "\u2581".encode()


class UnigramEncoder:
    """Encodes fragments of text with one vocabulary, its scores and its table of replacements."""

    def __init__(self, vocabulary: Vocabulary, charsmap: Charsmap | None) -> None:
        if vocabulary.roles.unknown is None:
            raise TokenizerError(f"{PREFIX}unknown_token_id: Unigram wants an unknown token, there is none")
        self._unknown = vocabulary.roles.unknown
        self._flags = vocabulary.flags
        self._charsmap = charsmap
        types = vocabulary.types
        normal = types == attributes.TYPE_NORMAL
        defined = types == attributes.TYPE_USER_DEFINED
        scores = np.where(defined, 0.0, vocabulary.scores)
        lowest = vocabulary.scores[normal].min() if normal.any() else np.finfo(np.float32).max
        # As float32, like the original.
        self._unknown_score = float(np.float32(lowest) - np.float32(UNKNOWN_PENALTY))
        matched = (normal | defined | (types == attributes.TYPE_UNUSED)).nonzero()[0].tolist()
        self._tokens = {vocabulary.texts[index]: (index, float(scores[index])) for index in matched}
        self._lengths = lengths_by_first(self._tokens)
        texts = (vocabulary.texts[index] for index in defined.nonzero()[0].tolist())
        self._defined = sorted(text.encode("utf-8", "surrogatepass") for text in texts)
        self._defined_first = {text[0] for text in self._defined}
        self._defined_longest = max(map(len, self._defined), default=0)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; they do not depend on its position."""
        return self._best_path(self._normalized(text.encode()).decode("utf-8", "replace"))

    def _best_path(self, text: str) -> list[int]:
        """Viterbi over characters: the best way to reach each position, then back from the end."""
        size = len(text)
        worst = -sys.float_info.max
        best = [worst] * (size + 1)
        best[0] = 0.0
        reached_by = [self._unknown] * (size + 1)
        reached_from = [0] * (size + 1)
        tokens, lengths = self._tokens, self._lengths
        for start in range(size):
            here = best[start]
            has_single = False
            for length in lengths.get(text[start], ()):
                end = start + length
                if end > size:
                    break
                entry = tokens.get(text[start:end])
                if entry is None:
                    continue
                has_single = has_single or length == 1
                score = here + entry[1]
                if score > best[end]:
                    best[end], reached_by[end], reached_from[end] = score, entry[0], start
            if not has_single and here + self._unknown_score > best[start + 1]:
                best[start + 1] = here + self._unknown_score
                reached_by[start + 1], reached_from[start + 1] = self._unknown, start
        ids: list[int] = []
        end = size
        while end > 0:
            # Neighbouring unknown tokens are one.
            if not (ids and ids[-1] == self._unknown == reached_by[end]):
                ids.append(reached_by[end])
            end = reached_from[end]
        return ids[::-1]

    def _normalized(self, text: bytes) -> bytes:
        """Replace by the table, spell spaces as U+2581, add or merge spaces as the flags say."""
        flags = self._flags
        space = SPACE if flags.escape_spaces else b" "
        merge, prefix_due = flags.remove_extra_whitespaces, flags.add_space_prefix
        pieces: list[bytes] = []
        in_word = False
        at = 0
        while at < len(text):
            replaced, at = self._normalized_prefix(text, at)
            for index, part in enumerate(replaced.split(b" ")):
                if index:
                    in_word = False
                    if not merge:
                        pieces.append(space)
                if part and not in_word:
                    in_word = True
                    if prefix_due or merge:
                        pieces.append(space)
                        prefix_due = False
                pieces.append(part)
        return b"".join(pieces)

    def _normalized_prefix(self, text: bytes, at: int) -> tuple[bytes, int]:
        """The replacement of the next part of the text, and the start of the text after it."""
        end = self._defined_end(text, at)
        if end > at:
            return text[at:end], end
        if self._charsmap is not None:
            replacement = self._charsmap.longest(text, at)
            if replacement is not None:
                return replacement
        lead = text[at]
        end = at + (1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4)
        return text[at:end], end

    def _defined_end(self, text: bytes, at: int) -> int:
        """The end of the longest prefix of a user-defined token, complete or not: it is not normalised."""
        if text[at] not in self._defined_first:
            return at
        rest = text[at : at + self._defined_longest]
        place = bisect_left(self._defined, rest)
        neighbours = self._defined[max(place - 1, 0) : place + 1]
        end = at + max(_shared(rest, neighbour) for neighbour in neighbours)
        while end < len(text) and text[end] & 0xC0 == 0x80:  # not inside a character
            end -= 1
        return end


def _shared(text: bytes, other: bytes) -> int:
    """How many bytes two texts have in common at their beginning."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(text), len(other)))


def unigram_encoder(vocabulary: Vocabulary, metadata: Metadata) -> UnigramEncoder:
    """Read the table of replacements and make the encoder."""
    key = PREFIX + "precompiled_charsmap"
    charsmap = read_charsmap(metadata.integers(key)) if metadata.has(key) else None
    return UnigramEncoder(vocabulary, charsmap)
