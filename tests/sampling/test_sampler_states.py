"""What samplers keep of a sequence goes with it: through forks, rewinds, shifts, files and preemption."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml import SamplingParams
from graphml.errors import UsageError
from graphml.sampling import PeekableRandom
from graphml.sampling.candidates.random_numbers import FilterStates
from tests.looped import looped
from tests.stories import STORIES

BYTES = 5 * 2 * 4 * 8 * 4
"""Of keys and values of a token: layers, both, heads, width, float32."""
START = [1, 403, 407, 261]
USED: dict[str, SamplingParams] = {
    "mirostat": SamplingParams(temperature=1.0, mirostat=1, mirostat_tau=3.0, mirostat_eta=0.5),
    "mirostat_v2": SamplingParams(temperature=1.0, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.5),
    "adaptive_p": SamplingParams(temperature=1.0, adaptive_target=0.3),
    "llama_cpp": SamplingParams(temperature=1.0, xtc_probability=0.5, mirostat=2, rng="llama.cpp"),
    "texts": SamplingParams(
        temperature=1.0, dry_multiplier=1.0, banned_strings=("the",), xtc_probability=0.4
    ),
}
used = pytest.mark.parametrize("params", [pytest.param(one, id=name) for name, one in USED.items()])


@pytest.fixture(scope="module")
def model() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=32, kv="f32") as model:
        yield model


def ids(session: Any, params: SamplingParams, n: int, prompt: Any = ()) -> list[int]:
    return [token.id for token in session.generate(prompt, params, n)]


@used
def test_a_fork_goes_on_the_same_way(model: graphml.Model, params: SamplingParams) -> None:
    session = model.session(seed=3)
    ids(session, params, 15, START)
    fork = session.fork()
    assert ids(session, params, 20) == ids(fork, params, 20)


@used
def test_a_saved_session_goes_on_the_same_way(
    model: graphml.Model, params: SamplingParams, tmp_path: Path
) -> None:
    session = model.session(seed=3)
    ids(session, params, 15, START)
    session.save(tmp_path / "held")
    again = model.restore(tmp_path / "held")
    assert ids(again, params, 20) == ids(session, params, 20)


@pytest.mark.parametrize("name", ["mirostat", "mirostat_v2", "adaptive_p"])
def test_a_rewind_brings_the_state_of_then_back(model: graphml.Model, name: str) -> None:
    def after(n: int, rewound: int | None = None) -> Any:
        session = model.session(seed=3)
        ids(session, USED[name], n, START)
        if rewound is not None:
            session.rewind(rewound)
        return session.numbers.kept.at(name, session.tokens, ())

    assert after(25, rewound=len(START) + 10) == after(10)
    assert after(25) != after(10)
    assert after(25, rewound=len(START)) == ()


def test_sampling_again_without_a_token_more_changes_no_state(model: graphml.Model) -> None:
    params = USED["mirostat_v2"]
    session = model.session(seed=3)
    ids(session, params, 5, START)
    before = session.numbers.kept.copy().at("mirostat_v2", session.tokens, ())
    for _ in range(3):
        session.sample(params)
    assert session.numbers.kept.at("mirostat_v2", session.tokens, ()) == before


def test_a_shift_takes_the_states_along(model: graphml.Model) -> None:
    session = model.session(n_ctx=64, seed=3)
    ids(session, USED["mirostat"], 40, START)
    before = session.numbers.kept.copy().at("mirostat", session.tokens, ())
    session.shift(keep=4, drop=10)
    assert session.numbers.kept.at("mirostat", session.tokens, ()) == before
    assert before != ()
    list(session.generate((), USED["mirostat"], 80, overflow="shift", keep=4))
    assert session.shifts


def test_states_of_other_tokens_are_not_used() -> None:
    kept = FilterStates()
    for n, token in enumerate([7, 8, 9], 1):
        kept.put("x", n, token, (float(n),))
    assert kept.copy().at("x", [7, 8, 9, 9], (0.0,)) == (3.0,)
    assert kept.copy().at("x", [7, 8, 5, 9], (0.0,)) == (2.0,)
    assert kept.copy().at("x", [7], (0.0,)) == (1.0,)
    assert kept.copy().at("x", [], (0.0,)) == (0.0,)
    shifted = kept.copy()
    shifted.forget(1, 1)
    assert shifted.at("x", [7, 9], (0.0,)) == (3.0,)
    assert shifted.at("x", [7], (0.0,)) == (1.0,)


@looped(
    "kept",
    [
        {"states": {"x": [[1, 2, ["a"]]]}},
        {"states": {"x": [[0, 2, [1.0]]]}},
        {"states": {"x": [[1, 2, [float("nan")]]]}},
        {"states": {"x": [[1, 2]]}},
        {"states": 4},
        {"generators": {"x": [1, 1 << 40]}},
        {"generators": {"x": "abc"}},
        [],
    ],
    ids=repr,
)
def test_states_of_a_file_are_checked(kept: Any) -> None:
    saved = {**PeekableRandom(1).saved(), "kept": kept}
    with pytest.raises(UsageError, match=r"^random: wanted"):
        PeekableRandom.restored(saved)


def test_a_function_of_ones_own_cannot_be_saved(model: graphml.Model, tmp_path: Path) -> None:
    session = model.session(seed=3)
    params = SamplingParams(function=lambda ids, logits, history: logits)
    assert ids(session, params, 4, START) == ids(model.session(), SamplingParams(), 4, START)
    with pytest.raises(UsageError, match="save: wanted params without a function"):
        session.save(tmp_path / "held")


@used
def test_in_an_engine_a_sequence_gets_what_it_gets_alone(
    model: graphml.Model, params: SamplingParams
) -> None:
    """Six at once in blocks for about three, so that some are preempted."""
    prompts = [[1, 403, 407, 261 + i] for i in range(6)]
    with model.session(n_ctx=128, seed=5) as session:
        wanted = ids(session, params, 100, prompts[0])
    with model.engine(n_ctx=128, max_sequences=6, kv_memory=13 * 32 * BYTES) as engine:
        runner, all_came = engine._loop._runner, threading.Event()
        assert runner is not None
        run = runner.run
        runner.run = lambda plan: all_came.wait() and run(plan)  # type: ignore[method-assign]
        handles = [engine.submit(prompt, params, max_tokens=100, seed=5) for prompt in prompts]
        all_came.set()
        found = [handle.result().tokens for handle in handles]
        assert engine.stats().n_preempted
    assert found[0] == wanted
    assert len({tuple(one) for one in found}) > 1
