"""The tokens of a model file or a tokenizer, as structured output needs them.

Knows files and tokenizers; nothing of grammars.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias
from weakref import WeakKeyDictionary, ref

from graphml.errors import UsageError
from graphml.loading import fetch
from graphml.sampling.structured.token_bytes import TokenBytes
from graphml.text.tokenizer import load_tokenizer


class AnyTokenizer(Protocol):
    """What is read of a tokenizer; `graphml.text.tokenizer.Tokenizer` has it."""

    n_vocab: int

    @property
    def end_tokens(self) -> Collection[int]:
        """The ids that end a generation."""

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text."""

    def piece_bytes(self, token: int) -> bytes:
        """The bytes of a token."""

    def is_special(self, token: int) -> bool:
        """Whether it is a control or unknown token."""

    def __hash__(self) -> int:
        """What is made of a tokenizer is kept by it."""


Vocabulary: TypeAlias = str | os.PathLike[str] | AnyTokenizer | TokenBytes
_OF_TOKENIZER: WeakKeyDictionary[AnyTokenizer, TokenBytes] = WeakKeyDictionary()


def open_vocabulary(vocab: Vocabulary | None) -> TokenBytes:
    """The tokens of a model file, by its path or name, or of a tokenizer; of the 256 bytes alone for None.

    A file is read once while it does not change. UsageError for anything else.
    """
    if vocab is None:
        return _bytes_alone()
    if isinstance(vocab, TokenBytes):
        return vocab
    if isinstance(vocab, str | os.PathLike):
        file = Path(vocab)
        mark = (file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else (0, 0)
        return _of_file(os.fspath(vocab), mark)
    if hasattr(vocab, "piece_bytes"):
        return tokens_of(vocab)
    raise UsageError(f"vocab: wanted the path of a model, a tokenizer or None, got {vocab!r:.80}")


def tokens_of(tokenizer: AnyTokenizer) -> TokenBytes:
    """The tokens of a tokenizer, made once."""
    found = _OF_TOKENIZER.get(tokenizer)
    if found is None:
        n = tokenizer.n_vocab
        found = _OF_TOKENIZER[tokenizer] = TokenBytes(
            tuple(tokenizer.piece_bytes(token) for token in range(n)),
            frozenset(tokenizer.end_tokens),
            frozenset(token for token in range(n) if tokenizer.is_special(token)),
            _token_of(tokenizer),
        )
    return found


@lru_cache(maxsize=4)
def _of_file(path: str, mark: tuple[int, int]) -> TokenBytes:
    with fetch.open_header(path) as file:
        return tokens_of(load_tokenizer(file.metadata))


@lru_cache(maxsize=1)
def _bytes_alone() -> TokenBytes:
    return TokenBytes((*(bytes([one]) for one in range(256)), b"<end>"), frozenset([256]), frozenset([256]))


def _token_of(tokenizer: AnyTokenizer) -> Callable[[str], int | None]:
    held = ref(tokenizer)  # what is kept as long as the tokenizer must not keep it

    def token_of(text: str) -> int | None:
        known = held()
        ids = [] if known is None else known.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    return token_of
