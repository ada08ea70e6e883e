"""Models as modules of PyTorch: the goldens' logits in float64, several texts, gradients, training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import UsageError
from tests import golden, tiny_model
from tests.stories import STORIES


def reference(model: graphml.Model, ids: list[int]) -> golden.Floats:
    """All rows by the reference: logits, or those of a model of embeddings."""
    if model.executor.generates:
        return model.session(n_ctx=64).eval(ids, all_logits=True)
    return model.embed_ids([ids], "none")[0]


@pytest.mark.parametrize("name", golden.names())
def test_it_is_the_reference_in_float64(name: str) -> None:
    known = golden.read(name)
    with graphml.load(golden.file(name), "reference", kv="f32", n_batch=64) as model, torch.no_grad():
        rows = graphml.to_torch(model).double()(torch.tensor(known.tokens)).numpy()
        assert golden.nmse(rows, reference(model, known.tokens)) <= 1e-10
    assert golden.nmse(rows, known.logits) <= 1e-6


@pytest.mark.parametrize("name", ["llama-dense", "mamba2-dense", "gemma3-dense", "qwen3next-moe"])
def test_several_texts_are_apart(name: str) -> None:
    ids = np.array(golden.read(name).tokens)
    texts = np.stack([ids, ids[::-1], np.roll(ids, 5)])
    with graphml.load(golden.file(name), "reference", kv="f32") as model, torch.no_grad():
        module = graphml.to_torch(model).double()
        together = module(texts)
        for i, text in enumerate(texts):
            assert golden.nmse(together[i].numpy(), module(text).numpy()) <= 1e-20


@pytest.mark.parametrize(
    "name", ["llama-dense", "olmoe-moe", "mamba-dense", "deepseek2-moe", "rwkv7-dense", "gpt-oss-moe"]
)
def test_gradients_are_difference_quotients_of_the_reference(name: str) -> None:
    """Along a direction in all weights together, by a module whose values are the reference's."""
    ids = golden.read(name).tokens[:9]
    with graphml.load(golden.file(name), "reference", kv="f32") as model:
        module = graphml.to_torch(model).double()
    generator = torch.Generator().manual_seed(1)
    own = [x for x in module.parameters() if x.is_floating_point()]
    steps = [torch.randn(x.shape, generator=generator, dtype=torch.float64) * 1e-3 for x in own]

    def loss() -> torch.Tensor:
        logits = module(ids)
        return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))

    loss().backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in own]
    slope = sum(float((x * step).sum()) for x, step in zip(gradients, steps, strict=True))
    values = []
    with torch.no_grad():
        for factor in (1e-3, -2e-3):
            for x, step in zip(own, steps, strict=True):
                x.add_(step, alpha=factor)
            values.append(float(loss()))
    assert slope != 0
    assert (values[0] - values[1]) / 2e-3 == pytest.approx(slope, rel=1e-4)


def test_another_weight_gives_other_logits() -> None:
    known = golden.read("llama-dense")
    with graphml.load(golden.file("llama-dense"), "reference", kv="f32") as model, torch.no_grad():
        module = graphml.to_torch(model).double()
        module.weight("blk.0.attn_q.weight")[0, 0] += 1.0
        assert golden.nmse(module(known.tokens).numpy(), known.logits) > 1e-6


def test_torchs_optimisers_train_it() -> None:
    with graphml.load(STORIES, "reference") as model:
        module, ids = graphml.to_torch(model), torch.tensor(model.encode("The frog ate a red car."))
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(module(ids)[:-1], ids[1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "m.gguf", n_ctx=64), "reference") as model:
        module = graphml.to_torch(model)
        for ids, said in (
            ([], "wanted whole numbers"), ([[[1]]], "wanted whole numbers"), ([0.5], "wanted whole numbers"),
            ([1] * 65, "at most 64 tokens"), ([1, 10**6], "got 1 to 1000000"), ([-1], "got -1"),
        ):  # fmt: skip
            with pytest.raises(UsageError, match=said):
                module(ids)
        with pytest.raises(UsageError, match="wanted none beside a model"):
            graphml.to_torch(model, {})


def test_verify_holds_a_graph_to_its_ops_in_torch(tmp_path: Path) -> None:
    options = ["verify", str(STORIES), "--against", "torch", "--tokens", "9", "--format", "json"]
    told = json.loads(CliRunner().invoke(app, options).stdout)
    assert told["agrees"]
    assert told["logits"]["nmse"] < 1e-10
    page = CliRunner().invoke(app, options[:-2]).stdout
    assert "against its graph by PyTorch's ops, 9 tokens" in page
