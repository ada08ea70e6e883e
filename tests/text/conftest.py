"""The vocabularies of tests/data/tokenizers, loaded once."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from graphml.text.tokenizer import Tokenizer, load_tokenizer
from graphml.weights import Metadata, open_model
from tests.text.vocabularies import DATA

Loader = Callable[[str], Tokenizer]


@pytest.fixture(scope="session")
def vocabulary_metadata(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Metadata]:
    folder = tmp_path_factory.mktemp("vocabularies")

    @cache
    def read(name: str) -> Metadata:
        path: Path = folder / f"{name}.gguf"
        path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
        return open_model(path).metadata

    return read


@pytest.fixture(scope="session")
def tokenizer(vocabulary_metadata: Callable[[str], Metadata]) -> Loader:
    return cache(lambda name: load_tokenizer(vocabulary_metadata(name)))
