"""Tensors that hold several matrices say what the same rows in several tensors say, quantised too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graphml_models import dots1
from graphml_models._samples import SPLIT_QKV, transformer

from graphml.loading.architecture import SampleModel
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import golden
from tests.golden import Floats, nmse
from tests.models import paper
from tests.sample_models import kind_of
from tests.test_architectures import N_BATCH, Sequence

Tensors = dict[str, Floats]


def joined_qkv(tensors: Tensors, prefix: str) -> None:
    parts = [tensors.pop(f"{prefix}.{name}") for name in SPLIT_QKV]
    tensors[f"{prefix}.attn_qkv.weight"] = np.concatenate(parts)


def joined_experts(tensors: Tensors, prefix: str) -> None:
    if f"{prefix}.ffn_gate_exps.weight" in tensors:  # its first layer has none
        gate, up = (tensors.pop(f"{prefix}.ffn_{name}_exps.weight") for name in ("gate", "up"))
        tensors[f"{prefix}.ffn_gate_up_exps.weight"] = np.concatenate([gate, up], axis=1)


def logits(path: Path, model: SampleModel, tensors: Tensors, form: str | None, backend: str) -> Floats:
    metadata = {key: (kind_of(value), value) for key, value in model.metadata.items()}
    architecture = next(iter(model.metadata)).split(".")[0]
    executor = open_executor(
        golden.write_gguf(path, architecture, metadata, tensors, form),
        LoadOptions(backend, threads=2, kv="f32", n_batch=N_BATCH),
    )
    try:
        said = Sequence(executor).feed(paper.TOKENS)
        assert not executor.unused_tensors
    finally:
        executor.close()
    return said


LAYOUTS: dict[str, tuple[SampleModel, Callable[[Tensors, str], None]]] = {
    "qkv": (transformer("llama"), joined_qkv),
    "experts": (dots1.sample("dots1")[0], joined_experts),
}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("layout", "form"), [("qkv", None), ("qkv", "q8_0"), ("experts", None)])
def test_joined_is_split(layout: str, backend: str, form: str | None, tmp_path: Path) -> None:
    model, join = LAYOUTS[layout]
    split = paper.random_weights(model)
    joined = dict(split)
    for layer in range(2):
        join(joined, f"blk.{layer}")
    assert joined.keys() != split.keys()
    a = logits(tmp_path / "split.gguf", model, split, form, backend)
    b = logits(tmp_path / "joined.gguf", model, joined, form, backend)
    assert nmse(b, a) < 1e-12
    swapped = {name: np.roll(array, 1, axis=-2) if "up_exps" in name or "qkv" in name else array
               for name, array in joined.items()}  # fmt: skip
    assert nmse(logits(tmp_path / "swapped.gguf", model, swapped, form, backend), a) > 1e-6
