"""Decoding of token ids to text, at once or token by token, with the same text either way.

A stream returns only text that later tokens cannot change: whole UTF-8 characters, and no space that the
cleaning of spaces may still remove. Knows tokens as bytes only.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from graphml.options.argument_checks import token_id
from graphml.text.tokenizer.pieces import Pieces

_BEFORE_PUNCTUATION: Final = re.compile(rb" ([?!.,])")
_LONE_APOSTROPHE: Final = re.compile(rb" ' ")
_CONTRACTION: Final = re.compile(rb" ('(?:[sm]|re|ve))")
# From the first space of a run of spaces and apostrophes on, cleaning depends on what follows.
_UNDECIDED: Final = re.compile(rb" [ ']*(?:(?<=')[rv])?\Z")


@dataclass(frozen=True)
class Decoding:
    """Decodes tokens. `drop_first_space`: one space at the very beginning is dropped."""

    pieces: Pieces
    drop_first_space: bool
    clean_spaces: bool

    def piece(self, token: int, skip_special: bool) -> bytes:
        """Return the bytes of a token in the middle of a text."""
        return b"" if skip_special and self.pieces.is_hidden(token) else self.pieces.bytes_of(token)

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        """Return the text of all tokens."""
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], skip_special: bool) -> bytes:
        """Return the bytes of the text of all tokens."""
        parts = [self.piece(token, skip_special) for token in ids]
        if parts and self.drop_first_space:
            parts[0] = parts[0].removeprefix(b" ")
        whole = b"".join(parts)
        return clean_spaces(whole) if self.clean_spaces else whole


class Stream:
    """Text of a growing sequence of tokens: each `push` returns the text that is now final, `flush` the rest.

    All returned strings together equal the decoded text of all tokens.
    """

    def __init__(self, decoding: Decoding, skip_special: bool, shown: frozenset[int] = frozenset()) -> None:
        self._decoding, self._shown = decoding, shown
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._undecided = b""
        self._first = True

    def push(self, token: int) -> str:
        """Take the next token; return the text that is now final, perhaps none."""
        id = token if type(token) is int else token_id(token)
        piece = self._decoding.piece(id, self._skip_special and token not in self._shown)
        if self._first and self._decoding.drop_first_space:
            piece = piece.removeprefix(b" ")
        self._first = False
        if not self._decoding.clean_spaces:
            return self._utf8.decode(piece)
        piece = self._undecided + piece
        undecided = _UNDECIDED.search(piece)
        certain = len(piece) if undecided is None else undecided.start()
        self._undecided = piece[certain:]
        return self._utf8.decode(clean_spaces(piece[:certain]))

    def flush(self) -> str:
        """Return the text held back; the stream then starts again."""
        rest = self._utf8.decode(clean_spaces(self._undecided), final=True)
        self._utf8.reset()
        self._undecided = b""
        self._first = True
        return rest


def clean_spaces(text: bytes) -> bytes:
    """Drop the space before ? ! . , 's 'm 're 've and those around a lone apostrophe, as llama.cpp does."""
    text = _BEFORE_PUNCTUATION.sub(rb"\1", text)
    text = _LONE_APOSTROPHE.sub(b"'", text)
    return _CONTRACTION.sub(rb"\1", text)
