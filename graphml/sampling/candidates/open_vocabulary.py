"""The vocabulary that samplers and grammars read, of a tokenizer or of a model file."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from graphml.errors import UsageError
from graphml.loading import fetch
from graphml.sampling.candidates.moment import SamplerVocabulary
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
