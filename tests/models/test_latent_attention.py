"""Latent attention folded into queries and outputs says the same as with keys and values made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphml.loading import discovery
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.backend_pairs import BACKENDS
from tests.golden import nmse
from tests.sample_models import kind_of
from tests.test_architectures import TOKENS, Sequence


@pytest.mark.parametrize("backend", [one for one in BACKENDS if one != "wgpu"])  # it runs OpenCL's kernels
def test_folded_is_unfolded(backend: str, tmp_path: Path) -> None:
    sample = discovery.architecture("deepseek2").sample
    assert sample is not None
    model = next(model for model in sample("deepseek2") if model.name == "v2")
    metadata = {key: (kind_of(value), value) for key, value in model.metadata.items()}
    folded = {name: golden.weights(name, shape[::-1], seed=7) for name, shape in model.tensors.items()}
    unfolded = dict(folded)
    for layer in range(2):
        keys, values = (unfolded.pop(f"blk.{layer}.attn_{name}_b.weight") for name in "kv")
        both = np.concatenate([keys.transpose(0, 2, 1), values], axis=1)  # [head, I + V, R]
        unfolded[f"blk.{layer}.attn_kv_b.weight"] = both.reshape(-1, both.shape[2])
    logits = []
    for title, tensors in (("folded", folded), ("unfolded", unfolded)):
        path = golden.write_gguf(tmp_path / f"{title}.gguf", "deepseek2", metadata, tensors)
        executor = open_executor(path, LoadOptions(backend, kv="f32", n_batch=24))
        logits.append(Sequence(executor).feed(TOKENS))
        assert not executor.unused_tensors
        executor.close()
    assert nmse(*logits) < 1e-10
