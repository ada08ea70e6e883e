"""The tokens of a vocabulary, as structured output needs them.

Knows vocabularies; nothing of grammars.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary, ref

from graphml.errors import UsageError
from graphml.loading import fetch
from graphml.sampling.candidates.moment import SamplerVocabulary
from graphml.sampling.structured.token_bytes import TokenBytes
from graphml.text.tokenizer import load_tokenizer

AnyVocabulary: TypeAlias = str | os.PathLike[str] | SamplerVocabulary


def opened_vocabulary(vocab: AnyVocabulary) -> SamplerVocabulary:
    """The tokenizer itself, or that of a model file by its path or name, read once while it does not change.

    TokenizerError for a file without one, UsageError for anything else.
    """
    if isinstance(vocab, str | os.PathLike):
        file = Path(vocab)
        mark = (file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else (0, 0)
        return _of_file(os.fspath(vocab), mark)
    if hasattr(vocab, "piece_bytes"):
        return vocab
    raise UsageError(f"vocab: wanted the path of a model or a tokenizer, got {vocab!r:.80}")


@lru_cache(maxsize=8)
def _of_file(path: str, mark: tuple[int, int]) -> SamplerVocabulary:
    with fetch.open_header(path) as file:
        return load_tokenizer(file.metadata)


KEPT_TEXTS: Final = 4096
"""Short texts whose ids are kept: those of keys and choices are asked for again and again."""
AnyTokens: TypeAlias = AnyVocabulary | TokenBytes
_OF_VOCABULARY: WeakKeyDictionary[SamplerVocabulary, TokenBytes] = WeakKeyDictionary()


def opened_tokens(vocab: AnyTokens | None) -> TokenBytes:
    """The tokens of a model file, by its path or name, or of a tokenizer; of the 256 bytes alone for None.

    Errors as of `opened_vocabulary`.
    """
    if vocab is None:
        return _bytes_alone()
    return vocab if isinstance(vocab, TokenBytes) else tokens_of(opened_vocabulary(vocab))


def tokens_of(vocabulary: SamplerVocabulary) -> TokenBytes:
    """The tokens of a tokenizer, made once."""
    tokens = _OF_VOCABULARY.get(vocabulary)
    if tokens is None:
        n = vocabulary.n_vocab
        tokens = _OF_VOCABULARY[vocabulary] = TokenBytes(
            tuple(vocabulary.piece_bytes(token) for token in range(n)),
            frozenset(vocabulary.end_tokens),
            frozenset(token for token in range(n) if vocabulary.is_special(token)),
            *_encoders(vocabulary),
        )
    return tokens


@lru_cache(maxsize=1)
def _bytes_alone() -> TokenBytes:
    return TokenBytes((*(bytes([byte]) for byte in range(256)), b"<end>"), frozenset([256]), frozenset([256]))


def _encoders(
    vocabulary: SamplerVocabulary,
) -> tuple[Callable[[str], int | None], Callable[[str], list[int]]]:
    held = ref(vocabulary)  # what is kept as long as the vocabulary must not keep it

    def token_of(text: str) -> int | None:
        known = held()
        ids = [] if known is None else known.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    def encode(text: str) -> list[int]:
        known = held()
        return [] if known is None else known.encode(text, add_special=False)

    return token_of, lru_cache(maxsize=KEPT_TEXTS)(encode)
