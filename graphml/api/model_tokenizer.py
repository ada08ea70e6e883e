"""The tokenizer of a model file, opened alone or with the model, and why there may be none."""

from __future__ import annotations

import os

from graphml.errors import TokenizerError
from graphml.loading import fetch
from graphml.options.argument_checks import text_of
from graphml.text.tokenizer import Tokenizer
from graphml.text.tokenizer import load_tokenizer as tokenizer_from
from graphml.text.tokenizer.vocabulary import NO_VOCABULARY
from graphml.weights import Metadata

VOCABULARY_KEY = "tokenizer.ggml.model"


def load_tokenizer(path: str | os.PathLike[str], pre: str | None = None) -> Tokenizer:
    """Open the tokenizer of a model file; `path` and `pre` as of `load`. No weights are downloaded.

    Raises TokenizerError for a vocabulary that is unknown, damaged or not there.
    """
    with fetch.open_header(path) as file:
        tokenizer = tokenizer_of(file.metadata, pre)
        if tokenizer is None:
            raise TokenizerError(f"{file.path}: {no_tokenizer(file.metadata)}")
        return tokenizer


def tokenizer_of(metadata: Metadata, pre: str | None) -> Tokenizer | None:
    """The tokenizer of a file, with this pre-tokenizer if one is named; None if it has no vocabulary."""
    if metadata.text(VOCABULARY_KEY, NO_VOCABULARY[0]) in NO_VOCABULARY:
        return None
    return tokenizer_from(metadata, None if pre is None else text_of("pre", pre))


def no_tokenizer(metadata: Metadata) -> str:
    """Why it has none, for errors."""
    said = metadata.describe(VOCABULARY_KEY).preview if metadata.has(VOCABULARY_KEY) else "missing"
    return (
        f"the file has no vocabulary ({VOCABULARY_KEY} is {said}), so text cannot be encoded or decoded; "
        "`graphml bench`, `graph` and `compare` want none, and Python's generate takes token ids"
    )
