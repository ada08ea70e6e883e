"""Perplexity against its definition, spelled out token by token."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.api.perplexity import perplexity
from tests import tiny_model


def test_it_is_the_mean_loss_of_second_halves(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    ids = np.random.default_rng(3).integers(3, 268, 70).tolist()
    with graphml.load(path, backend="reference", kv="f32", n_batch=8) as model:
        losses = []
        for start in (0, 30):
            session = model.session()
            session.eval([tiny_model.BEGIN])
            for position in range(start + 1, start + 29):
                logits = session.eval(ids[position : position + 1]).astype(np.float64)
                if position - start >= 15:
                    losses.append(math.log(np.exp(logits).sum()) - logits[ids[position + 1]])
        found = list(perplexity(model.session(), ids, 30, None, tiny_model.BEGIN))
        assert [one.chunks for one in found] == [1, 2]
        assert [one.count for one in found] == [14, 28]
        assert found[1].value == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
        error = math.exp(np.mean(losses)) * np.std(losses) / math.sqrt(27)
        assert found[1].error == pytest.approx(error, rel=1e-3)
        assert len(list(perplexity(model.session(), ids, 30, 1))) == 1
        with pytest.raises(graphml.UsageError, match="n_ctx: wanted at most 35, half of the text's"):
            next(perplexity(model.session(), ids, 36))


def test_a_short_text_is_halved_unless_a_window_is_asked_for(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), "reference") as model:
        text = "hello world " * 8
        half = len(model.encode(text)) // 2
        found = model.perplexity(text)
        assert 4 <= half < model.n_ctx
        assert (found.n_ctx, found) == (half, model.perplexity(text, half))
        with pytest.raises(graphml.UsageError, match=f"n_ctx: wanted at most {half}, half"):
            model.perplexity(text, half + 1)
        with pytest.raises(graphml.UsageError, match="text: wanted at least 8 tokens, got 1"):
            model.perplexity("hello")


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (math.nan, "the model's logits are no numbers: NaN for token 7"),
        (math.inf, r"the model's logits are no numbers: \+inf for token 7"),
        (3e38, "chunk 1: the model gives the text no probability: a mean loss of"),
    ],
)
def test_logits_that_give_no_estimate_are_an_error(
    number: float, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, backend="reference", kv="f32", n_batch=8) as model:
        session = model.session()
        evaluated = session.eval

        def damaged(ids: list[int], all_logits: bool = False) -> np.ndarray:
            logits = evaluated(ids, all_logits)
            logits[..., 7] = number
            return logits

        monkeypatch.setattr(session, "eval", damaged)
        with pytest.raises(graphml.GraphmlError, match=says):
            list(perplexity(session, list(range(20, 40)), 10))
        with pytest.raises(graphml.UsageError, match="chunks: wanted at least 1 or None for all, got 0"):
            next(perplexity(session, list(range(20, 40)), 10, 0))
