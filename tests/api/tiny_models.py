"""Fixtures of tiny architectures, each opened on the CPU backend and on the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import graphml
from tests.test_architectures import MODELS, write_model


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
