"""Requests that begin alike: attention to what they share is computed once, for the same answers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import graphml
from graphml import SamplingParams
from tests import tiny_model

BEGINNING = [1 + (7 * i) % 240 for i in range(200)]
PROMPTS = [[*BEGINNING[:shared], 3 + n, 9, 50 + n] for n, shared in enumerate((200, 200, 150, 200, 190, 3))]
PARAMS = SamplingParams(logprobs=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("alike") / "model.gguf", n_ctx=400)
    with graphml.load(path, "cpu", threads=1, kv="f32") as opened:
        yield opened


def probabilities(model: graphml.Model, at_once: int) -> list[np.ndarray]:
    """Log-probabilities of the five most likely tokens at each place of each answer."""
    with model.engine(max_sequences=at_once) as engine:
        wanted = engine.submit(PROMPTS[0], max_tokens=1).result(60)  # so that others find its blocks
        assert wanted.tokens
        handles = [engine.submit(ids, PARAMS, max_tokens=12) for ids in PROMPTS]
        results = [one.result(60) for one in handles]
    return [np.array([[one.logprob for one in place.top] for place in one.logprobs or ()]) for one in results]


def test_answers_are_those_of_each_alone(model: graphml.Model) -> None:
    together, alone = probabilities(model, len(PROMPTS)), probabilities(model, 1)
    for a, b in zip(together, alone, strict=True):
        assert a.shape == b.shape == (12, 5)
        np.testing.assert_allclose(a, b, atol=2e-4)
    assert any((a != b).any() for a, b in zip(together, alone, strict=True))  # computed in another order
