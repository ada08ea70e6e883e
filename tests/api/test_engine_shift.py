"""An engine's full contexts and forks on a model: tokens as of a session; no neighbour is touched.

A GPU has its own kernels for moving and copying cells, so it meets one of each such test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import graphml
from graphml import ContextFullError, SamplingParams, UsageError
from graphml.api.engine import Engine
from tests.api.test_engine import at_rest
from tests.sample_models import MODELS, write_model
from tests.stories import STORIES

PROMPT = [1, *range(300, 340)]
WARM = SamplingParams(temperature=1.5)


@pytest.fixture(scope="module", params=["cpu"])
def model(request: pytest.FixtureRequest) -> Iterator[graphml.Model]:
    with graphml.load(STORIES, request.param, n_batch=32, kv="f32") as model:
        yield model


@pytest.fixture
def engine(model: graphml.Model) -> Iterator[Engine]:
    with model.engine(max_sequences=4, n_ctx=64) as engine:
        yield engine
        at_rest(engine)


def by_session(model: graphml.Model, ids: list[int], count: int, **how: object) -> list[int]:
    session = model.session(n_ctx=64)
    return [token.id for token in session.generate(ids, None, count, **how)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "keep", "count"),
    [("cpu", 0, 90), ("cpu", 5, 90), ("cpu", -1, 90), ("opencl", 5, 56)],
    indirect=["model"],
)
def test_a_shifted_sequence_goes_on_as_a_session(
    model: graphml.Model, engine: Engine, keep: int, count: int
) -> None:
    """Shifted twice or more: at the 24th token and the 53rd."""
    wanted = by_session(model, PROMPT, count, overflow="shift", keep=keep)
    result = engine.submit(PROMPT, max_tokens=count, overflow="shift", keep=keep).result()
    assert (result.tokens, result.stop_reason, result.n_gen) == (wanted, "length", len(wanted))
    assert len(wanted) == count


@pytest.mark.parametrize(("model", "count"), [("cpu", 120), ("opencl", 60)], indirect=["model"])
def test_neighbours_and_later_requests_see_nothing_of_it(
    model: graphml.Model, engine: Engine, count: int
) -> None:
    alone = by_session(model, PROMPT, 20)
    shifted = engine.submit(PROMPT, max_tokens=count, overflow="shift", keep=3)
    others = [engine.submit(PROMPT, max_tokens=20) for _ in range(4)]
    assert [one.result().tokens for one in others] == [alone] * 4
    found = shifted.result().tokens
    assert engine.submit(PROMPT, max_tokens=20).result().tokens == alone
    assert engine.submit([*PROMPT, *found[:10]], max_tokens=10).result().tokens == found[10:20]


def test_the_engine_may_say_what_a_full_context_does(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=64, overflow="shift") as engine:
        assert len(engine.submit(PROMPT, max_tokens=40).result().tokens) == 40
        stopped = engine.submit(PROMPT, max_tokens=40, overflow="stop").result()
        assert (len(stopped.tokens), stopped.stop_reason) == (23, "context")
        failed = engine.submit(PROMPT, max_tokens=40, overflow="error")
        with pytest.raises(ContextFullError, match="the context of 64 tokens is full"):
            failed.result()
        assert len(list(stopped.tokens)) == 23
        with pytest.raises(UsageError, match="overflow: wanted one of"):
            engine.submit(PROMPT, overflow="nonsense")
        at_rest(engine)


@pytest.mark.parametrize(
    ("model", "n_prompt", "prefix_cache"),
    [*[("cpu", count, kept) for count in (2, 33, 41) for kept in (True, False)], ("opencl", 41, True)],
    indirect=["model"],
)
def test_continuations_are_those_of_single_requests(
    model: graphml.Model, n_prompt: int, prefix_cache: bool
) -> None:
    with model.engine(max_sequences=4, n_ctx=64, prefix_cache=prefix_cache) as engine:
        handle = engine.submit(PROMPT[:n_prompt], WARM, max_tokens=12, seed=3, n=4)
        results = handle.results()
        assert [one.n_cached for one in results] == [0, *[n_prompt - 1] * 3]
        for index, one in enumerate(results):
            single = engine.submit(PROMPT[:n_prompt], WARM, max_tokens=12, seed=3 + index).result()
            assert single.tokens == one.tokens
        at_rest(engine)


@pytest.mark.parametrize("name", ["mamba-plain", "jamba-plain"])
def test_recurrent_continuations_fork_their_states(name: str, tmp_path: Path) -> None:
    if name not in MODELS:
        name = next(one for one in MODELS if one.startswith(name.split("-")[0]))
    path = write_model(tmp_path / "model.gguf", *MODELS[name])
    with graphml.load(path, kv="f32") as model, model.engine(max_sequences=3, n_ctx=64) as engine:
        prompt = list(range(5, 45))
        results = engine.submit(prompt, WARM, max_tokens=8, seed=3, n=5).results()
        assert [one.n_cached for one in results][:3] == [0, 39, 39]
        for index, one in enumerate(results):
            session = model.session(n_ctx=64, seed=3 + index)
            assert [token.id for token in session.generate(prompt, WARM, 8)] == one.tokens
        with pytest.raises(UsageError, match=r"overflow: .* has no context shift"):
            engine.submit(prompt, overflow="shift")
