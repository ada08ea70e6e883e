"""Training of factors: the loss is the formula's, checkpoints change no bit, the file is what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphml
from graphml.errors import GraphmlError, UsageError
from graphml.finetuning.examples import Example, read_examples
from graphml.finetuning.factors import as_adapter, first_pairs, targets
from graphml.finetuning.memory import activations
from graphml.finetuning.run import Finetuning
from graphml.finetuning.settings import FinetuneSettings
from graphml.finetuning.step import Step
from graphml.finetuning.training import Training
from graphml.ir.op import Array
from graphml.loading.adapter_files import read_adapter
from graphml.torch_module.model_module import ModelModule
from tests import golden, tiny_model
from tests.stories import STORIES

TEXTS: list[Any] = [{"text": text} for text in ("The frog sat.", "A big red car.", "Tom ran home.", "I see.")]
SETTINGS = FinetuneSettings(rank=2, n_batch=3, epochs=2, learning_rate=1e-2)


def stories() -> graphml.Model:
    return graphml.load(STORIES, "reference", kv="f32")


def trained(model: graphml.Model, settings: FinetuneSettings, texts: Any = TEXTS) -> Training:
    examples = read_examples(texts, model, settings.n_ctx).texts
    pairs = first_pairs(targets(model, settings.targets or ()), settings.rank, settings.seed)
    return Training(model, examples, pairs, settings)


def test_the_first_loss_is_the_models_own_and_the_gradient_is_of_the_factors_alone() -> None:
    with stories() as model:
        training = trained(model, FinetuneSettings(rank=2, n_batch=4, n_steps=1))
        (step,) = training.steps()
        total, count = 0.0, 0
        for fields in TEXTS:
            ids = np.array([*model.encode(fields["text"]), 2])
            rows = model.session(64).eval(ids[:-1].tolist(), all_logits=True).astype(np.float64)
            logs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
            total -= logs[np.arange(len(ids) - 1), ids[1:]].sum()
            count += len(ids) - 1
    assert model.tokenizer is not None
    assert model.tokenizer.eos == 2
    assert step.n_learned == count
    assert step.loss == pytest.approx(total / count, rel=1e-5)
    with_gradient = {name for name, x in training._module.named_parameters() if x.grad is not None}
    assert with_gradient == {name for name, x in training._module.named_parameters() if x.requires_grad}
    assert len(with_gradient) == 2 * len(training.pairs)


@pytest.mark.parametrize("name", ["llama-dense", "olmoe-moe", "mamba2-dense", "rwkv7-dense", "gemma3-dense"])
def test_a_step_goes_down_the_difference_quotient(name: str) -> None:
    """The loss along the way from the first pairs to those after a step, by the reference."""
    ids = golden.read(name).tokens[:9]
    example = Example(np.array(ids, np.int32), np.arange(1, 9, dtype=np.int32))
    settings = FinetuneSettings(rank=2, n_batch=1, n_steps=1, epochs=1, learning_rate=1e-3, clip=1e9)
    with graphml.load(golden.file(name), "reference", kv="f32") as model:
        first = first_pairs(targets(model, ()), 2, 0)
        random = np.random.default_rng(3)
        first = {name: (a, random.standard_normal(b.shape, np.float32) / 8) for name, (a, b) in first.items()}
        training = Training(model, [example], first, settings)
        before = training.loss([example])
        list(training.steps())
        after = training.loss([example])
        assert after < before
        slope = sum(
            float((weight.grad * change).sum())
            for (_, weight), change in zip(training._named(), _changes(first, training), strict=True)
            if weight.grad is not None
        )
        assert after - before == pytest.approx(slope, rel=0.15)


def _changes(first: Any, training: Training) -> list[torch.Tensor]:
    return [
        torch.from_numpy(now - before)
        for name, pair in training.pairs.items()
        for now, before in zip(pair, first[name], strict=True)
    ]


def test_texts_at_once_or_one_by_one_are_one_step() -> None:
    with stories() as model:
        each = [
            trained(model, FinetuneSettings(rank=2, n_batch=4, n_together=n, n_steps=2)) for n in (1, 999)
        ]
        steps = [list(training.steps()) for training in each]
        assert steps[0][1].loss == pytest.approx(steps[1][1].loss, rel=1e-5)
        for name, pair in each[0].pairs.items():
            for one_by_one, at_once in zip(pair, each[1].pairs[name], strict=True):
                assert np.allclose(one_by_one, at_once, atol=1e-5)


class KilledError(Exception):
    """In place of a signal."""


@pytest.mark.parametrize("after", [1, 3])
def test_interrupted_and_gone_on_with_it_is_the_same_to_the_last_bit(tmp_path: Path, after: int) -> None:
    def kill(step: Step) -> None:
        if step.number == after:
            raise KilledError

    with stories() as model:
        whole = graphml.finetune(model, TEXTS, tmp_path / "whole.gguf", SETTINGS, validation=TEXTS[:1])
        with pytest.raises(KilledError):
            graphml.finetune(
                model, TEXTS, tmp_path / "parts.gguf", SETTINGS, validation=TEXTS[:1], on_step=kill
            )
        assert not (tmp_path / "parts.gguf").exists()
        work = Finetuning(model, TEXTS, tmp_path / "parts.gguf", SETTINGS, TEXTS[:1])
        assert work.plan.n_done == after
        parts = work.run()
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "parts.gguf").read_bytes()
    assert [step.loss for step in whole.steps] == [step.loss for step in parts.steps]
    assert whole.validation == parts.validation
    assert whole.validation is not None
    assert whole.validation[1] < whole.validation[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.gguf", "whole.gguf"]


def test_an_interrupt_within_a_change_keeps_no_state(tmp_path: Path) -> None:
    with stories() as model:
        work = Finetuning(model, TEXTS, tmp_path / "a.gguf", SETTINGS)
        optimiser = work._training._optimiser
        change = optimiser.step

        def step() -> None:
            change()
            if work._training.done == 1:
                raise KilledError

        optimiser.step = step
        with pytest.raises(KilledError):
            work.run()
        assert work._training.done == 1
        assert not list(tmp_path.iterdir())


def test_models_without_a_next_token_are_refused(tmp_path: Path) -> None:
    for path in (golden.file("eurobert-dense"), tiny_model.write(tmp_path / "m.gguf", denoises=True)):
        with (
            graphml.load(path, "reference") as model,
            pytest.raises(UsageError, match="predicts the next token"),
        ):
            graphml.finetune(model, TEXTS, tmp_path / "a.gguf")


def test_a_checkpoint_of_something_else_is_refused_by_what_differs(tmp_path: Path) -> None:
    def kill(step: Step) -> None:
        raise KilledError

    output = tmp_path / "a.gguf"
    with stories() as model:
        with pytest.raises(KilledError):
            graphml.finetune(model, TEXTS, output, SETTINGS, on_step=kill)
        with pytest.raises(UsageError, match=r"other settings: rank 2, now 3; remove it"):
            graphml.finetune(model, TEXTS, output, SETTINGS, rank=3)
        with pytest.raises(UsageError, match=r"a.gguf.checkpoint: .* other data; remove it"):
            graphml.finetune(model, TEXTS[1:], output, SETTINGS)
        with pytest.raises(UsageError, match=r"a.gguf.checkpoint: .* other validation; remove it"):
            graphml.finetune(model, TEXTS, output, SETTINGS, validation=TEXTS)
        checkpoint = tmp_path / "a.gguf.checkpoint"
        checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
        with pytest.raises(UsageError, match=r"a\.gguf\.checkpoint"):
            graphml.finetune(model, TEXTS, output, SETTINGS)


def test_the_file_is_what_was_trained(tmp_path: Path) -> None:
    output = tmp_path / "a.gguf"
    with stories() as model:
        work = Finetuning(
            model, TEXTS, output, FinetuneSettings(rank=2, alpha=6.0, n_steps=3, learning_rate=0.05)
        )
        done = work.run()
        assert done.nmse < 1e-9
        ids = np.array(model.encode("The frog sat."))
        wanted = work._training.logits(ids)
        assert golden.nmse(wanted, model.session(64).eval(ids.tolist(), all_logits=True)) > 1e-4
        adapter = read_adapter(output, model.executor.file)
    assert all(a.shape[0] == 2 for a, _ in adapter.pairs.values())
    with graphml.load(STORIES, "reference", kv="f32", lora=[(output, 1.0)]) as model:
        assert golden.nmse(model.session(64).eval(ids.tolist(), all_logits=True), wanted) < 1e-9
        with torch.no_grad():  # an opened adapter is a part of the module, too
            assert golden.nmse(graphml.to_torch(model)(ids).numpy(), wanted) < 1e-9
        with pytest.raises(UsageError, match="wanted a model without adapters"):
            graphml.finetune(model, TEXTS, tmp_path / "b.gguf")


def test_a_file_that_is_not_what_was_trained_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphml.finetuning import run

    write = run.write_adapter
    monkeypatch.setattr(
        run, "write_adapter", lambda path, arch, pairs, alpha: write(path, arch, pairs, alpha * 3)
    )
    with stories() as model, pytest.raises(GraphmlError, match="are not training's: wanted an NMSE below"):
        graphml.finetune(model, TEXTS, tmp_path / "a.gguf", rank=2, epochs=20, learning_rate=0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf.checkpoint"]


def test_experts_learn_by_name() -> None:
    ids = np.array(golden.read("olmoe-moe").tokens[:9], np.int32)
    example = Example(ids, np.arange(1, 9, dtype=np.int32))
    settings = FinetuneSettings(rank=2, n_batch=1, epochs=6, learning_rate=0.05, targets=("ffn_down_exps",))
    with graphml.load(golden.file("olmoe-moe"), "reference", kv="f32") as model:
        training = Training(
            model, [example], first_pairs(targets(model, settings.targets or ()), 2, 0), settings
        )
        losses = [step.loss for step in training.steps()]
    assert losses[-1] < losses[0]


def test_a_loss_that_is_no_number_ends_it(tmp_path: Path) -> None:
    with stories() as model, pytest.raises(GraphmlError, match=r"step \d+: the loss is .*smaller"):
        graphml.finetune(model, TEXTS, tmp_path / "a.gguf", learning_rate=1e30, epochs=9, warmup=0.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"rank": 0}, "rank: wanted a whole number of at least 1"), ({"learning_rate": 0.0}, "learning_rate"),
     ({"warmup": 1.0}, "warmup"), ({"targets": 5}, "targets: wanted names"), ({"rnak": 3}, "rnak")],
)  # fmt: skip
def test_settings_are_checked_by_name(tmp_path: Path, changes: Any, said: str) -> None:
    with stories() as model, pytest.raises(UsageError, match=said):
        graphml.finetune(model, TEXTS, tmp_path / "a.gguf", **changes)


def test_texts_of_any_lengths_stand_behind_one_another() -> None:
    for name in ("llama-dense", "mamba-dense", "gemma3-dense", "rwkv7-dense", "qwen3next-moe"):
        ids: Array = np.array(golden.read(name).tokens)
        with graphml.load(golden.file(name), "reference", kv="f32") as model, torch.no_grad():
            module = ModelModule(model).double()
            texts = [ids[:7], ids, ids[3:15]]
            alone = np.concatenate([module(text).numpy() for text in texts])
            assert golden.nmse(module.rows(texts).numpy(), alone) < 1e-20, name
            chosen = np.array([0, 6, 9, len(ids) + 9])
            assert golden.nmse(module.rows(texts, chosen).numpy(), alone[chosen]) < 1e-20, name


def test_memory_grows_with_the_tokens_at_once(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "m.gguf"), "reference") as model:
        pairs = first_pairs(targets(model, ()), 2, 0)
        module = ModelModule(model, [as_adapter(pairs)], [1.0])
        leaves = {leaf for name in pairs for leaf in as_adapter(pairs).weight_names(name)}
        few, many = (activations(module.graph, n, leaves) for n in (10, 20))
        assert many == 2 * few
        assert activations(module.graph, 10, ()) < few
