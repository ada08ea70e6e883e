"""Biases of diffusion models: added where the models' own code has them, whatever llama.cpp does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphml
from tests import golden
from tests.sample_models import MODELS, write_model

IDS = [3, 14, 15, 9, 2, 6]
LAYER = {
    f"blk.{i}.{part}.bias": (size,) for i in (0, 1) for part, size in (("attn_output", 64), ("ffn_up", 96))
}
N_VOCAB = 80


def logits_and_unused(
    path: Path, architecture: str, more: dict[str, tuple[int, ...]]
) -> tuple[golden.Floats, list[str]]:
    name, sample = MODELS[architecture]
    sample = replace(sample, tensors={**sample.tensors, **more})
    with graphml.load(write_model(path, name, sample), "reference", kv="f32") as model:
        return model.session().eval(IDS, all_logits=True), model.executor.unused_tensors


@pytest.mark.parametrize("architecture", ["dream-plain", "rnd1-plain"])
def test_where_the_head_has_none_it_is_left_out(architecture: str, tmp_path: Path) -> None:
    plain, _ = logits_and_unused(tmp_path / "plain.gguf", architecture, {})
    more = {"output.weight": (N_VOCAB, 64), "output.bias": (N_VOCAB,)}
    without = {"output.weight": (N_VOCAB, 64)}
    biased, unused = logits_and_unused(tmp_path / "biased.gguf", architecture, more)
    wanted, _ = logits_and_unused(tmp_path / "head.gguf", architecture, without)
    assert unused == ["output.bias"]
    np.testing.assert_array_equal(biased, wanted)
    assert plain.shape == biased.shape


def test_in_llada_every_bias_is_added(tmp_path: Path) -> None:
    plain, _ = logits_and_unused(tmp_path / "plain.gguf", "llada-plain", {})
    biased, unused = logits_and_unused(tmp_path / "biased.gguf", "llada-plain", {"output.bias": (N_VOCAB,)})
    assert unused == []
    with graphml.load(tmp_path / "biased.gguf", "reference") as model:
        bias = model.executor.file.tensors["output.bias"].numpy()
    np.testing.assert_allclose(biased - plain, np.broadcast_to(bias, plain.shape), atol=1e-5)
    assert np.abs(bias).max() > 0.01
    layers, unused = logits_and_unused(tmp_path / "layers.gguf", "llada-plain", LAYER)
    assert unused == []
    assert np.abs(layers - plain).max() > 1e-3


def test_in_llada_the_rope_has_no_factors(tmp_path: Path) -> None:
    plain, _ = logits_and_unused(tmp_path / "plain.gguf", "llada-plain", {})
    factors, unused = logits_and_unused(tmp_path / "rope.gguf", "llada-plain", {"rope_freqs.weight": (8,)})
    assert unused == ["rope_freqs.weight"]
    np.testing.assert_array_equal(factors, plain)
