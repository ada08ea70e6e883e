"""The vocabulary that samplers read, of a tokenizer or of a model file."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TypeAlias

from graphml.argument_checks import path_of
from graphml.loading import fetch
from graphml.sampling.moment import Vocabulary
from graphml.text.tokenizer import Tokenizer, load_tokenizer

AnyVocabulary: TypeAlias = str | os.PathLike[str] | Vocabulary


def opened_vocabulary(vocab: AnyVocabulary) -> Tokenizer | Vocabulary:
    """The tokenizer itself, or that of a model file; TokenizerError for a file without one."""
    if hasattr(vocab, "piece_bytes"):
        return vocab  # type: ignore[return-value]
    return _of_file(os.fspath(path_of("vocab", vocab)))


@lru_cache(maxsize=8)
def _of_file(path: str) -> Tokenizer:
    with fetch.open_header(path) as file:
        return load_tokenizer(file.metadata)
