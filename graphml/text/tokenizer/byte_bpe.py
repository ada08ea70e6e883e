"""Byte-pair encoding: words cut by a pre-tokenizer, merged by the `tokenizers` library's BPE model.

Covers byte-level vocabularies (GPT-2's letters for bytes) and those over plain text (gemma 4). The
library merges; this file has llama.cpp's differences: characters without a token are removed before merging,
which does not join their neighbours, and become byte tokens or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tokenizers import Tokenizer, models

from graphml.errors import TokenizerError
from graphml.text.tokenizer.pieces import BYTE_LETTERS
from graphml.text.tokenizer.pre_tokenizers import PreTokenizer, split
from graphml.text.tokenizer.unicode_classes import WHITESPACE, lowercase
from graphml.text.tokenizer.vocabulary import PREFIX, Vocabulary
from graphml.text.tokenizer.words import WordCache
from graphml.weights import Metadata

LONG_WORD: Final = 4096
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPACES: Final = re.compile(f"[{''.join(map(chr, WHITESPACE))}]+")


class BytePairEncoder:
    """Encodes fragments of text with one vocabulary and its merges."""

    def __init__(self, vocabulary: Vocabulary, rules: PreTokenizer, merges: list[str]) -> None:
        self._rules = rules
        self._ids = vocabulary.ids
        self._by_space = vocabulary.model == "whitespace"
        self._lowercase = vocabulary.flags.lowercase
        self._model = _merging_model(vocabulary, merges)
        self._library = Tokenizer(self._model)
        self._letters = frozenset(text for text in vocabulary.texts if len(text) == 1)
        self._words = WordCache(self._encode_word)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; they do not depend on its position."""
        if self._rules.escape_spaces:
            text = text.replace(" ", "\u2581")
        if not self._by_space:
            return self._words.encode(split(text, self._rules.steps))
        if self._lowercase:
            text = "".join(map(lowercase, text))
        parts = [part for part in _SPACES.split(text) if part]
        return self._words.encode(word for part in parts for word in split(part, self._rules.steps))

    def _encode_word(self, word: str) -> list[int]:
        if self._rules.byte_level:
            word = word.encode().decode("latin-1").translate(BYTE_LETTERS)
        if self._rules.ignore_merges or (self._rules.whole_newlines and not word.strip("\n")):
            whole = self._ids.get(word)
            if whole is not None:
                return [whole]
        if self._letters.issuperset(word):
            return self._merged(word)
        ids: list[int] = []
        start = 0
        for index, letter in enumerate(word):
            if letter not in self._letters:
                ids += self._merged(word[start:index])
                ids += self._bytes(letter)
                start = index + 1
        return ids + self._merged(word[start:])

    def _merged(self, word: str) -> list[int]:
        if len(word) <= LONG_WORD:
            return [token.id for token in self._model.tokenize(word)] if word else []
        # The same ids, slower; but without the interpreter's lock, so that other threads go on.
        ids: list[int] = self._library.encode_batch([word], add_special_tokens=False)[0].ids
        return ids

    def _bytes(self, letter: str) -> list[int]:
        """The byte tokens of a character without a token; a byte-level vocabulary has nothing for it."""
        if self._rules.byte_level:
            return []
        tokens = (self._ids.get(f"<0x{byte:02X}>") for byte in letter.encode())
        return [token for token in tokens if token is not None]


def byte_pair_encoder(vocabulary: Vocabulary, metadata: Metadata) -> BytePairEncoder:
    """Read the merges and make the encoder; TokenizerError if a merge does not fit the vocabulary."""
    rules = vocabulary.pre
    if rules is None:
        raise TokenizerError(f"{PREFIX}model = {vocabulary.model!r} has no pre-tokenizer to cut words with")
    key = PREFIX + "merges"
    # Kimi K2's files have no merges.
    optional = metadata.text(PREFIX + "pre", "") == "kimi-k2"
    merges = metadata.texts(key) if metadata.has(key) or not optional else []
    return BytePairEncoder(vocabulary, rules, merges)


def _merging_model(vocabulary: Vocabulary, merges: list[str]) -> models.BPE:
    merges = list(dict.fromkeys(merges))  # of two equal merges the first one applies
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    # A first part that begins with a space: the separator is the next one.
    for index in [index for index, merge in enumerate(merges) if merge[:1] == " "]:
        first, _, second = merges[index][1:].partition(" ")
        pairs[index] = (" " + first, second)
    known = vocabulary.ids
    try:
        return _library_model(known, pairs)
    except Exception as error:  # the library raises plain Exception for a merge that does not fit
        for merge, pair in zip(merges, pairs, strict=True):
            if len(pair) != 2 or not {*pair, "".join(pair)} <= known.keys():
                raise TokenizerError(
                    f"{PREFIX}merges: two tokens that make a third are wanted, got {merge[:64]!r}"
                ) from error
        raise TokenizerError(f"{PREFIX}merges: the library refuses the vocabulary: {error}") from error


def _library_model(known: Mapping[str, int], pairs: list[tuple[str, ...]]) -> models.BPE:
    try:
        return models.BPE(dict(known), pairs)  # type: ignore[arg-type]  # pairs; the library checks them
    except UnicodeEncodeError:
        # Tokens that are not UTF-8 cannot occur in a text.
        known = {text: token for text, token in known.items() if not _SURROGATE.search(text)}
        return models.BPE(known, pairs)  # type: ignore[arg-type]  # as above
