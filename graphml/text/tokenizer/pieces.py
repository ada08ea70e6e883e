"""The bytes of each token, which need not be whole characters.

Knows how vocabularies spell bytes and spaces; nothing of encoding.
"""

from __future__ import annotations

import re
from typing import Final

from graphml.errors import TokenizerError
from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.hybrid_dna import unmarked
from graphml.text.tokenizer.rwkv import unescaped
from graphml.text.tokenizer.vocabulary import NO_VOCABULARY_TEXT, PREFIX, Vocabulary


def _byte_letters() -> str:
    """Each byte's letter: itself if it is printable Latin-1, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(rest)) for byte in range(256))


BYTE_LETTERS: Final = _byte_letters()
LETTER_BYTES: Final = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


_BYTE_TOKEN: Final = re.compile("<0x([0-9A-Fa-f]{2})>")


class Pieces:
    """The bytes of every token of a vocabulary, made when first asked for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._marks: list[int] = vocabulary.attributes.tolist()
        self._known: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def is_hidden(self, token: int) -> bool:
        """Whether it is a control or unknown token, which plain text omits."""
        return self._marks[self._checked(token)] & int(attributes.HIDDEN) != 0

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token; TokenizerError for an id that is out of range."""
        raw = self._known.get(token)
        if raw is None:
            raw = self._known[token] = self._spelled(self._checked(token))
        return raw

    def _checked(self, token: int) -> int:
        if not self._marks:
            raise TokenizerError(NO_VOCABULARY_TEXT)
        if not 0 <= token < len(self._marks):
            raise TokenizerError(f"token id {token}: 0 to {len(self._marks) - 1} are the vocabulary's ids")
        return token

    def _spelled(self, token: int) -> bytes:
        text, marks, kind = self._vocabulary.texts[token], self._marks[token], self._vocabulary.kind
        if kind == "rwkv":
            return unescaped(text)
        if marks & int(attributes.SPECIAL) or (kind == "plamo2" and not marks & int(attributes.BYTE)):
            return _utf8(text)
        if self._vocabulary.model == "hybriddna":
            text = unmarked(self._vocabulary, token)
        if marks & int(attributes.NORMAL):
            if self._vocabulary.flags.escape_spaces:
                return _utf8(text.replace("\u2581", " "))
            return _bytes_of_letters(text)
        if marks & int(attributes.BYTE):
            match = _BYTE_TOKEN.fullmatch(text)
            if match is None:
                raise TokenizerError(
                    f"{PREFIX}tokens: byte token {token} must read like <0x0A>, it is {text[:64]!r}"
                )
            return bytes.fromhex(match.group(1))
        return b""


def _bytes_of_letters(text: str) -> bytes:
    """Undo GPT-2's letters for bytes; a letter of no byte is spelled out, as llama.cpp does."""
    spelled = bytearray()
    for letter in text:
        byte = LETTER_BYTES.get(letter)
        if byte is not None:
            spelled.append(byte)
        else:
            spelled += f"[UNK_BYTE_0x{_utf8(letter).hex()}".encode() + _utf8(text) + b"]"
    return bytes(spelled)


def _utf8(text: str) -> bytes:
    """UTF-8, with bytes that were invalid in the file unchanged."""
    return text.encode("utf-8", "surrogateescape")
