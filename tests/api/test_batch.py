"""Several sequences in one step: the same as each alone, whatever the others do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import graphml
from tests.golden import nmse
from tests.looped import looped
from tests.stories import STORIES

PROMPTS = [[1, 403, 407, 261], [1, 410], [1, 300, 301, 302, 303, 304, 305, 306, 307, 308, 309, 310]]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def model(request: pytest.FixtureRequest) -> Iterator[graphml.Model]:
    with graphml.load(STORIES, request.param, threads=2, n_batch=8, kv="f32") as model:
        yield model


def alone(model: graphml.Model, ids: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with model.session(n_ctx=64) as session:
        return session.eval(ids)


def test_prompts_and_single_tokens(model: graphml.Model) -> None:
    """The prompts fill more than one step, and cut a sequence in two."""
    with model.batch(3, n_ctx=64) as batch:
        logits = batch.eval(PROMPTS)
        for i, ids in enumerate(PROMPTS):
            assert nmse(logits[i], alone(model, ids)) < 1e-10
        following = [[5], [6, 7], [8]]
        again = batch.eval(following)
        single = batch.eval([[9], [10], [11]])
        for i, (ids, more) in enumerate(zip(PROMPTS, following, strict=True)):
            assert nmse(again[i], alone(model, ids + more)) < 1e-10
            assert nmse(single[i], alone(model, [*ids, *more, 9 + i])) < 1e-10
            assert batch.sessions[i].tokens == [*ids, *more, 9 + i]


def test_generation_is_that_of_each_alone(model: graphml.Model) -> None:
    greedy = graphml.SamplingParams(temperature=0.0)
    with model.batch(3, n_ctx=64) as batch:
        found: list[list[graphml.Token]] = [[], [], []]
        for i, token in batch.generate(PROMPTS, greedy, max_tokens=20):
            found[i].append(token)
        for i, ids in enumerate(PROMPTS):
            with model.session(n_ctx=64) as session:
                assert found[i] == list(session.generate(ids, greedy, max_tokens=20))
                assert batch.sessions[i].stop_reason == session.stop_reason
                assert batch.sessions[i].tokens == session.tokens
            assert batch.sessions[i].stats.n_gen == 20


def test_one_may_end_before_the_others(model: graphml.Model) -> None:
    greedy = graphml.SamplingParams(temperature=0.0)
    with model.session(n_ctx=64) as session:
        first = [token.id for token in session.generate(PROMPTS[0], greedy, max_tokens=6)]
    stopping = graphml.SamplingParams(temperature=0.0, stop_tokens=(first[3],))
    with model.batch(2, n_ctx=64) as batch:
        rounds = [i for i, _ in batch.generate(PROMPTS[:2], [stopping, greedy], max_tokens=6)]
        assert rounds == [0, 1, 0, 1, 0, 1, 1, 1, 1]
        assert [session.stop_reason for session in batch.sessions] == ["stop", "length"]


def test_sessions_can_be_used_alone_in_between(model: graphml.Model) -> None:
    with model.batch(2, n_ctx=64) as batch:
        batch.eval(PROMPTS[:2])
        one, other = batch.sessions
        one.rewind(2)
        assert nmse(one.eval([50, 51]), alone(model, [*PROMPTS[0][:2], 50, 51])) < 1e-10
        logits = batch.eval([[1], [2]])
        assert nmse(logits[1], alone(model, [*PROMPTS[1], 2])) < 1e-10
        assert other.tokens == [*PROMPTS[1], 2]


def test_an_evaluation_ends_a_running_generation(model: graphml.Model) -> None:
    with model.batch(2, n_ctx=64) as batch:
        running = batch.generate(PROMPTS[:2], max_tokens=9)
        next(running)
        batch.eval([[1], [2]])
        with pytest.raises(graphml.UsageError, match="used for something else"):
            list(running)


def test_an_error_leaves_all_as_they_were(model: graphml.Model) -> None:
    with model.batch(2, n_ctx=16) as batch:
        batch.eval([[1, 2, 3], [1] * 15])
        with pytest.raises(graphml.ContextFullError, match="at most n_ctx = 16 tokens and has 15"):
            batch.eval([[4], [5, 6]])
        assert [session.n_past for session in batch.sessions] == [3, 15]
        logits = batch.eval([[4], [5]])
        assert nmse(logits[0], alone(model, [1, 2, 3, 4])) < 1e-10


@looped(
    ("ids", "says"),
    [
        ([[1]], "ids: wanted one for each of 2 sessions; got 1"),
        ([[1], []], "wanted at least one token id for each session"),
        ([[1], [512]], "512"),
    ],
)
def test_wrong_ids(model: graphml.Model, ids: list[list[int]], says: str) -> None:
    with model.batch(2, n_ctx=16) as batch, pytest.raises(graphml.UsageError, match=says):
        batch.eval(ids)


def test_wrong_sizes(model: graphml.Model) -> None:
    for count in (0, 9, 1.5):
        with pytest.raises(graphml.UsageError, match="n_sequences: wanted"):
            model.batch(count)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(graphml.UsageError, match="n_ctx: wanted"):
        model.batch(2, n_ctx=0)
