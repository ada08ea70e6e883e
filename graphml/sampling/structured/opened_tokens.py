"""The tokens of a vocabulary, as structured output needs them.

Knows vocabularies; nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary, ref

from graphml.sampling.candidates.moment import SamplerVocabulary
from graphml.sampling.candidates.open_vocabulary import AnyVocabulary, opened_vocabulary
from graphml.sampling.structured.token_bytes import TokenBytes

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
