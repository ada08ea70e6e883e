"""Sensitivity of matrices: what it predicts beside the divergence that errors have; the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import graphml
from graphml.errors import UsageError
from graphml.weights import open_model
from graphml.workshop.measured_types import matrices
from graphml.workshop.sensitivity import sensitivity
from tests import tiny_model
from tests.cli.test_commands import graphml_command

TEXT = "hello world, a world of words; " * 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "tiny.gguf")


def test_it_predicts_the_divergence_of_small_errors(path: Path) -> None:
    with graphml.load(path, "reference") as model:
        ids = np.random.default_rng(0).integers(3, 260, 64 * 32).tolist()
        names = [tensor.name for tensor in matrices(model.executor.file)]
        *_, seen = sensitivity(model, ids, names, n_texts=32, length=64)
        assert (seen.n_texts, seen.length) == (32, 64)
        module = graphml.to_torch(model)
        texts = torch.tensor(ids).reshape(-1, 64)
        with torch.no_grad():
            base = torch.log_softmax(module(texts), -1)
            for name in ("blk.0.ffn_down.weight", "blk.1.attn_v.weight", "blk.0.attn_q.weight"):
                weight = dict(module.named_parameters())[name]
                kept = weight.clone()
                errors = (
                    0.02 * kept.std() * torch.randn(kept.shape, generator=torch.Generator().manual_seed(1))
                )
                weight.add_(errors)
                changed = torch.log_softmax(module(texts), -1)
                weight.copy_(kept)
                truth = float((base.exp() * (base - changed)).sum(-1).mean())
                assert seen.kl(name, errors.numpy()) == pytest.approx(truth, rel=0.35), name


def test_columns_are_means_over_rows(path: Path) -> None:
    with graphml.load(path, "reference") as model:
        name = "blk.0.ffn_up.weight"
        *_, seen = sensitivity(model, model.encode(TEXT), [name], n_texts=3, length=32)
        assert set(seen.sums) == {name}
        assert seen.columns(name)[0] == pytest.approx(seen.sums[name].mean(axis=0) / (2 * 32 * 3), rel=1e-5)
        again = list(sensitivity(model, model.encode(TEXT), [name], n_texts=3, length=32))[-1]
        assert (again.sums[name] == seen.sums[name]).all()
        with pytest.raises(UsageError, match="calibration: wanted a text of at least 160 tokens; got 2"):
            next(sensitivity(model, [5, 6], [name]))


def test_the_command_from_a_text(path: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    output, costs = tmp_path / "out.gguf", tmp_path / "costs.gguf"
    common = ["quantize", path, output, "--auto", "--target-bits", 6.5, "-f", tmp_path / "text.txt"]
    said = graphml_command(*common, "--texts", 2, "--costs", costs, "--types", "Q4_0,Q5_0,Q5_1,Q8_0")
    assert "KL divergence a token predicted" in said.stdout
    with open_model(output) as file:
        assert 8 * file.n_weight_bytes / sum(t.n_elements for t in file.tensors.values()) <= 6.5
    first = output.read_bytes()
    graphml_command(*common, "--costs", costs, "--types", "Q4_0,Q5_0,Q5_1,Q8_0", "--force")
    assert output.read_bytes() == first
