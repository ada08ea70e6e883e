"""The tokens of a model file or a tokenizer, as structured output needs them.

Knows files and tokenizers; nothing of grammars.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

from graphml.errors import UsageError
from graphml.loading import fetch
from graphml.sampling.structured.token_bytes import TokenBytes
from graphml.text.tokenizer import Tokenizer, load_tokenizer


class HasTokenizer(Protocol):
    """Anything with a tokenizer, such as a model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        ...


Vocabulary = str | os.PathLike[str] | Tokenizer | TokenBytes
_OF_TOKENIZER: WeakKeyDictionary[Tokenizer, TokenBytes] = WeakKeyDictionary()


def open_vocabulary(vocab: Vocabulary | None) -> TokenBytes:
    """The tokens of a model file, by its path or name, or of a tokenizer; of the 256 bytes alone for None.

    A file is read once while it does not change. UsageError for anything else.
    """
    if vocab is None:
        return _bytes_alone()
    if isinstance(vocab, TokenBytes):
        return vocab
    if isinstance(vocab, Tokenizer):
        return tokens_of(vocab)
    if isinstance(vocab, str | os.PathLike):
        file = Path(vocab)
        mark = (file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else (0, 0)
        return _of_file(os.fspath(vocab), mark)
    raise UsageError(f"vocab: wanted the path of a model, a tokenizer or None, got {vocab!r:.80}")


def tokens_of(tokenizer: Tokenizer) -> TokenBytes:
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


def _token_of(tokenizer: Tokenizer) -> Callable[[str], int | None]:
    # The vocabulary is not asked to keep the tokenizer that it is kept with.
    encode = tokenizer.encode

    def token_of(text: str) -> int | None:
        ids = encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    return token_of
