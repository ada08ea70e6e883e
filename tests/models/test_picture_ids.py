"""Chameleon's ids of pieces of pictures, which are never the answer; all others keep their logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphml_models import chameleon

from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.golden import Floats
from tests.one_text import OneText
from tests.sample_models import write_model

N_VOCAB = 8300


def logits(path: Path, backend: str) -> Floats:
    executor = open_executor(path, LoadOptions(backend, threads=1, kv="f32", n_batch=4))
    try:
        return np.asarray(OneText(executor).step([3, 5000, 8299]))
    finally:
        executor.close()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_ids_of_pictures_are_never_the_answer(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chameleon.sample("chameleon")[0]
    tables = dict.fromkeys(("token_embd.weight", "output.weight"), (N_VOCAB, 64))
    keys = {"chameleon.vocab_size": N_VOCAB}
    large = replace(model, metadata={**model.metadata, **keys}, tensors={**model.tensors, **tables})
    path = write_model(tmp_path / "model.gguf", "chameleon", large)
    rows = logits(path, backend)
    monkeypatch.setattr(chameleon, "PICTURES", (4, N_VOCAB))  # more than there are
    every = logits(path, backend)
    assert np.isfinite(every).all()
    assert np.isneginf(rows[:, 4:8196]).all()
    every[:, 4:8196] = -np.inf
    np.testing.assert_array_equal(rows, every)
