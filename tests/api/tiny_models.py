"""Fixtures of small models: tiny architectures on two backends, and 260k parameters that tell stories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import graphml
from tests.sample_models import MODELS, write_model
from tests.stories import STORIES


def opened_models(names: Sequence[str]) -> Any:
    """A fixture of a test file: the models of these names, one after the other, on both backends."""

    @pytest.fixture(
        scope="module", params=[(name, backend) for name in names for backend in ("cpu", "reference")],
        ids="-".join,
    )  # fmt: skip
    def model(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[graphml.Model]:
        name, backend = request.param
        path = write_model(tmp_path_factory.mktemp("tiny") / "model.gguf", *MODELS[name])
        with graphml.load(path, backend, threads=2, n_batch=32, kv="f32") as opened:
            yield opened

    return model


def stories_and(names: Sequence[str], n_batch: int) -> Any:
    """A fixture of a test file: the stories, then the models of these names, on the CPU."""

    @pytest.fixture(scope="module", params=["stories", *names])
    def model(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[graphml.Model]:
        path = STORIES
        if request.param != "stories":
            path = tmp_path_factory.mktemp("recurrent") / "model.gguf"
            write_model(path, *MODELS[request.param])
        with graphml.load(path, "cpu", threads=1, n_batch=n_batch, kv="f32") as opened:
            yield opened

    return model


def log_softmax(row: Any) -> Any:
    """In float64, by NumPy."""
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())
