"""A tiny model on the reference backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import graphml
from tests import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with graphml.load(path, backend="reference", n_batch=8, kv="f32") as opened:
        yield opened


@pytest.fixture
def ids(model: graphml.Model) -> list[int]:
    return model.encode("hello world, hello")
