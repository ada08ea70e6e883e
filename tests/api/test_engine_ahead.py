"""Steps of an engine that are submitted before the one before is read: the tokens are those of one by one."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import graphml
from graphml.api.engine import Engine
from graphml.compiler.top_k_outputs import SAMPLED, SAMPLING_SETTINGS
from graphml.ir.op import Array
from graphml.ir.ops.sampling import SETTINGS
from graphml.runtime.steps import runner
from graphml.runtime.steps.computed_plan import BegunPlan
from graphml.runtime.steps.runner import Runner
from graphml.runtime.steps.sampled_rows import Sampled, sampled_rows
from graphml.sampling import SamplingParams
from tests import tiny_model
from tests.api import remembering

PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.9, top_k=0, top_p=1.0),
    SamplingParams(temperature=1.0, top_k=8),
]
TOP_K_SETTING = SETTINGS.index("top_k")
PROMPTS = [[7, 8, 9], [20], [*range(40, 75)], [7, 8, 9, 10], [30, 31], [50, 51, 52]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("ahead") / "tiny.gguf", n_ctx=96)
    with remembering.load(path, reads_back=True, n_batch=16) as model:
        yield model


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each plan that was submitted ahead."""
    seen: list[int] = []
    submit = Runner.submit

    def counted(self: Runner, plan: Any, after: BegunPlan | None, wanted: Any) -> BegunPlan | None:
        begun = submit(self, plan, after, wanted)
        if after is not None and begun is not None:
            seen.append(plan.n_rows)
        return begun

    monkeypatch.setattr(Runner, "submit", counted)
    return seen


def submitted(engine: Engine, lengths: list[int]) -> list[Any]:
    return [
        engine.submit(ids, PARAMS[i % len(PARAMS)], max_tokens=lengths[i % len(lengths)], seed=i)
        for i, ids in enumerate(PROMPTS)
    ]


def alone(model: graphml.Model, number: int, max_tokens: int) -> list[int]:
    with model.session(seed=number) as session:
        params = PARAMS[number % len(PARAMS)]
        return [one.id for one in session.generate(PROMPTS[number], params, max_tokens=max_tokens)]


def all_alone(model: graphml.Model, lengths: list[int]) -> list[list[int]]:
    return [alone(model, number, lengths[number % len(lengths)]) for number in range(len(PROMPTS))]


def check(model: graphml.Model, lengths: list[int], wanted: list[list[int]]) -> None:
    with model.engine(max_sequences=4) as engine:
        for handle, tokens in zip(submitted(engine, lengths), wanted, strict=True):
            assert handle.result(60).tokens == tokens
        assert engine.stats().blocks_used == 0


@pytest.mark.parametrize("lengths", [[30], [5, 30, 17]], ids=["equal", "different"])
def test_tokens_are_those_of_sessions(model: graphml.Model, followed: list[int], lengths: list[int]) -> None:
    check(model, lengths, all_alone(model, lengths))
    assert max(followed) > 1  # several sequences at once
    assert len(followed) > 10


def test_a_device_that_samples_otherwise_is_not_believed(
    model: graphml.Model, followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three tokens of the device is another than the host's; of greedy rows nothing else is read."""
    wanted = all_alone(model, [30])
    run, chance = remembering.RememberingProgram.run, random.Random(5)

    def wrong(self: Any, dims: Mapping[str, int], state: Any) -> dict[str, Array]:
        outputs = run(self, dims, state)
        for row in range(dims["O"]):
            greedy = SAMPLED in outputs and self.inputs[SAMPLING_SETTINGS][row][TOP_K_SETTING] == 1.0
            if chance.random() < 0.3 and SAMPLED in outputs and not greedy:
                outputs[SAMPLED] = outputs[SAMPLED].copy()
                outputs[SAMPLED][row] ^= 1
                self._latest = outputs
        return outputs

    monkeypatch.setattr(remembering.RememberingProgram, "run", wrong)
    check(model, [30], wanted)
    assert followed


def test_a_token_that_needs_its_whole_row_is_sampled_in_a_step_that_gives_it(
    model: graphml.Model, followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, n_lost, wanted = random.Random(6), 0, all_alone(model, [30])

    def near_an_edge(outputs: Mapping[str, Array], of: Any, *more: Any) -> list[Sampled]:
        nonlocal n_lost
        kept = {row: one for row, one in of.items() if "logits" in outputs or chance.random() > 0.2}
        n_lost += len(of) - len(kept)
        found = dict(zip(kept, sampled_rows(outputs, kept, *more), strict=True))
        return [found.get(row) for row in of]

    monkeypatch.setattr(runner, "sampled_rows", near_an_edge)
    check(model, [30], wanted)
    assert n_lost > 10
    assert followed


def test_another_engine_cancels_and_new_requests_come_between(
    model: graphml.Model, followed: list[int]
) -> None:
    stop = threading.Event()

    def steps_between() -> None:
        """Of the same program, whose latest outputs are those of either engine."""
        with model.engine(max_sequences=3) as engine:
            while not stop.is_set():
                for handle in [engine.submit([3, 4, number], max_tokens=10) for number in range(3)]:
                    handle.result()

    other = threading.Thread(target=steps_between)
    other.start()
    try:
        with model.engine(max_sequences=3) as engine:
            for turn in range(6):
                handles = submitted(engine, [25, 40])
                handles[turn].cancel()
                for number, handle in enumerate(handles):
                    wanted = alone(model, number, [25, 40][number % 2])
                    tokens = handle.result(60).tokens
                    assert tokens == wanted if number != turn else tokens == wanted[: len(tokens)]
            assert engine.stats().blocks_used == 0
    finally:
        stop.set()
        other.join()
    assert followed


def test_a_sequence_by_itself_runs_ahead_where_its_row_must_be_read_along(
    model: graphml.Model, followed: list[int]
) -> None:
    """As in a session; of several sequences whole rows are not read ahead."""
    params = SamplingParams(temperature=0.9, top_k=0, top_p=0.8)
    with model.session(seed=3) as session:
        wanted = [token.id for token in session.generate([7, 8, 9], params, max_tokens=20)]
    followed.clear()
    with model.engine(max_sequences=2) as engine:
        assert engine.submit([7, 8, 9], params, max_tokens=20, seed=3).result(60).tokens == wanted
    assert len(followed) > 10
    followed.clear()
    with model.engine(max_sequences=2) as engine:
        handles = [engine.submit([7, 8, 9], params, max_tokens=20, seed=3) for _ in range(2)]
        assert [handle.result(60).tokens for handle in handles] == [wanted, wanted]
    assert 2 not in followed
