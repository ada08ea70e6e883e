"""RWKV's tokenizer (`tokenizer.ggml.model` = `rwkv`): at each place the longest token, over bytes.

GGUF's tokens are spelled as Python writes bytes, with escapes. Source: RWKV's "world" tokenizer; llama.cpp
matches control tokens that stand in plain text, too.
"""

from __future__ import annotations

import re
from typing import Final

from graphml.errors import TokenizerError
from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.vocabulary import PREFIX, Vocabulary

_ESCAPE: Final = re.compile(rb"\\(?:x(.{0,2})|(.?))", re.DOTALL)
_LETTERS: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(text: str) -> bytes:
    """The bytes of a token; TokenizerError for an escaped x without two digits."""

    def meant(match: re.Match[bytes]) -> bytes:
        digits, letter = match.groups()
        if digits is None:
            return _LETTERS.get(letter, letter)
        if len(digits) < 2 or not digits.isalnum():
            raise ValueError(digits)
        return bytes([int(digits, 16)])

    try:
        return _ESCAPE.sub(meant, text.encode("utf-8", "surrogateescape"))
    except ValueError:
        raise TokenizerError(
            f"{PREFIX}tokens: \\x wants two hexadecimal digits behind it, {text[:64]!r} has others"
        ) from None


class LongestMatchEncoder:
    """Encodes fragments of text with one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        hidden = (vocabulary.attributes & attributes.HIDDEN != 0).tolist()
        self._ids = {unescaped(text): i for i, text in enumerate(vocabulary.texts) if not hidden[i]}
        lengths: dict[int, set[int]] = {}
        for token in self._ids:
            if token:
                lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        missing = next((byte for byte in range(256) if bytes([byte]) not in self._ids), None)
        if missing is not None:
            raise TokenizerError(f"{PREFIX}tokens: a token for each byte is wanted, {missing:#04x} has none")

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; they do not depend on its position."""
        data, ids, start = text.encode(), list[int](), 0
        while start < len(data):
            for length in self._lengths[data[start]]:
                token = self._ids.get(data[start : start + length])
                if token is not None and start + length <= len(data):
                    ids.append(token)
                    start += length
                    break
        return ids
