"""The vocabularies of tests/data/tokenizers, loaded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from graphml.text.tokenizer import Tokenizer, load_tokenizer
from graphml.weights import Metadata
from tests.text.vocabularies import recorded_metadata

Loader = Callable[[str], Tokenizer]


@pytest.fixture(scope="session")
def vocabulary_metadata(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Metadata]:
    folder = tmp_path_factory.mktemp("vocabularies")

    return cache(lambda name: recorded_metadata(name, folder))


@pytest.fixture(scope="session")
def tokenizer(vocabulary_metadata: Callable[[str], Metadata]) -> Loader:
    return cache(lambda name: load_tokenizer(vocabulary_metadata(name)))
