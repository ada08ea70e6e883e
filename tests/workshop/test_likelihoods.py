"""Log-likelihoods of continuations: those of the rows of logits, though contexts are shared in an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError
from graphml.workshop.likelihoods import TOGETHER, Likelihood, log_likelihoods
from tests import tiny_model
from tests.api.tiny_models import log_softmax, stories_and

model = stories_and(["mamba-plain", "jamba-plain", "gemma3-plain"], n_batch=96)
RNG = np.random.default_rng(5)


def ids(count: int) -> list[int]:
    return RNG.integers(3, 75, count).tolist()


def check(model: graphml.Model, found: Likelihood, context: list[int], continuation: list[int]) -> None:
    rows = model.logits([*context, *continuation])[len(context) - 1 : -1]
    expected = [log_softmax(row)[token] for row, token in zip(rows, continuation, strict=True)]
    assert found.logprobs == pytest.approx(expected, abs=1e-4)
    assert found.are_top == tuple((rows.argmax(axis=1) == continuation).tolist())
    assert found.total == pytest.approx(sum(expected), abs=1e-3)


def test_continuations_of_shared_contexts_have_the_probabilities_of_their_rows(model: graphml.Model) -> None:
    contexts = [ids(70), ids(1), ids(40)]
    pairs = [(context, ids(size)) for context in contexts for size in (1, 5, 12, 33)]
    first = model.logits(contexts[0])[-1].argmax()
    pairs.append((contexts[0], [int(first)]))
    found = list(log_likelihoods(model, pairs))
    assert len(found) == len(pairs)
    for likelihood, (context, continuation) in zip(found, pairs, strict=True):
        check(model, likelihood, context, continuation)
    assert found[-1].is_greedy
    assert not found[0].is_greedy


def test_of_a_shared_context_no_row_is_computed_again(model: graphml.Model) -> None:
    context, first, second = ids(70), ids(4), ids(9)
    with model.engine(n_ctx=128) as engine:
        for continuation, least in ((first, 0), (second, 64 if model.arch != "gemma3" else 0)):
            result = engine.submit(
                [*context, *continuation], prompt_logprobs=0, max_tokens=0, scores_from=len(context)
            ).result()
            assert least <= result.n_cached < len(context)
            scores = result.prompt_logprobs or []
            assert [score is None for score in scores] == [True] * len(context) + [False] * len(continuation)
        # All of it is scored here, so that none of it can be found.
        assert engine.submit([*context, *second], prompt_logprobs=0, max_tokens=0).result().n_cached == 0


def test_more_pairs_than_run_at_a_time_come_in_their_order(tmp_path: Path) -> None:
    with graphml.load("stories260k") as model:
        tails = [ids(1 + i % 7) for i in range(5 * TOGETHER)]
        found = list(log_likelihoods(model, [([1, 5, 9], tail) for tail in tails]))
    assert [len(likelihood.logprobs) for likelihood in found] == [len(tail) for tail in tails]


def test_nothing_is_as_likely_as_can_be() -> None:
    with graphml.load("stories260k") as model:
        empty, some = log_likelihoods(model, [([1], []), ([1], [5])])
        assert list(log_likelihoods(model, [])) == []
    assert (empty.total, empty.mean, empty.is_greedy) == (0.0, 0.0, True)
    assert some.mean == some.total < 0


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (([], [5]), r"pairs\[1\]: wanted a context of at least one token"),
        (([1] * 500, [5] * 12), r"pairs\[1\]: wanted less than 512 tokens, the model's context; got 512"),
        (([1], [512]), "512"),
    ],
)
def test_pairs_that_have_no_likelihood_are_refused(pair: tuple[list[int], list[int]], says: str) -> None:
    with graphml.load("stories260k") as model, pytest.raises(UsageError, match=says):
        list(log_likelihoods(model, [([1], [5]), pair]))


def test_models_that_predict_no_next_token_are_refused(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf", denoises=True)
    with graphml.load(path) as model, pytest.raises(UsageError, match="no probability token by token"):
        list(log_likelihoods(model, [([1], [5])]))


def test_without_the_harness_its_model_says_what_to_install() -> None:
    hidden = "import sys; sys.modules['lm_eval'] = None\nimport graphml.workshop.lm_eval"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert "UsageError: lm_eval: lm-evaluation-harness is missing; pip install '.[eval]'" in done.stderr


def test_scores_begin_within_the_prompt() -> None:
    with (
        graphml.load("stories260k") as model,
        model.engine(n_ctx=32) as engine,
        pytest.raises(UsageError, match="scores_from: wanted 0 to 1; got 2"),
    ):
        engine.submit([1, 5], scores_from=2)
