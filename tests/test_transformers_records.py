"""Architectures without a golden of llama.cpp, on every backend: what transformers says of the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphml.loading import discovery
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.backend_pairs import by_forms
from tests.golden import Floats, nmse
from tests.one_text import OneText
from tests.sample_models import MODELS, write_model
from tests.transformers_records import FOLDER, RECORDS, SOURCE, TOKENS, architecture, read, sample_of

LIMIT = 1e-9  # transformers turns angles in float32, and backends differ there too
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))


def rows(name: str, backend: str, path: Path, step: int) -> Floats:
    """The rows of all tokens, fed in steps of so many."""
    write_model(path, *MODELS[sample_of(name)])
    executor = open_executor(path, LoadOptions(backend, threads=2, kv="f32", n_batch=len(TOKENS)))
    try:
        text = OneText(executor)
        if executor.encodes:
            text.sequence.read_source(np.array(SOURCE, np.int32))
        pieces = [TOKENS[i : i + step] for i in range(0, len(TOKENS), step)]
        return np.concatenate([text.step(piece) for piece in pieces])
    finally:
        executor.close()


def test_every_record_is_of_an_architecture() -> None:
    assert sorted(RECORDS) == NAMES
    assert set(map(architecture, NAMES)) <= set(discovery.architecture_names())


@pytest.mark.parametrize(("name", "backend"), by_forms(NAMES))
def test_it_is_what_transformers_says(name: str, backend: str, tmp_path: Path) -> None:
    causal = discovery.architecture(architecture(name)).causal
    for step in (len(TOKENS), 1) if causal and backend == "cpu" else (len(TOKENS),):
        assert nmse(rows(name, backend, tmp_path / "model.gguf", step), read(name)) <= LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_a_poisoned_weight_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = golden.weights

    def poisoned(tensor: str, sizes: tuple[int, ...], seed: int) -> Floats:
        return plain(tensor, sizes, seed) * np.float32(-1 if tensor.endswith("blk.1.ffn_down.weight") else 1)

    monkeypatch.setattr(golden, "weights", poisoned)
    assert nmse(rows(name, "reference", tmp_path / "model.gguf", len(TOKENS)), read(name)) > 10 * LIMIT
