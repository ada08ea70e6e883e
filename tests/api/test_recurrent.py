"""Sessions and batches of recurrent models: rewound, failed, cancelled, together they are as if fresh."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.memory_needed import memory_need
from graphml.runtime.sessions import pinned
from graphml.runtime.steps.runner import Runner
from tests import golden
from tests.golden import Floats, nmse
from tests.sample_models import MODELS, write_model

NAMES = ["mamba-plain", "granitehybrid-experts"]  # a state alone, and beside keys and values
IDS = np.random.default_rng(2).integers(0, 80, 60).tolist()
CLOSE = 1e-10


@pytest.fixture(
    scope="module", params=[(name, backend) for name in NAMES for backend in ("cpu", "reference")]
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[graphml.Model]:
    name, backend = request.param
    path = tmp_path_factory.mktemp("recurrent") / "model.gguf"
    write_model(path, *MODELS[name])
    with graphml.load(path, backend, threads=2, n_batch=8, kv="f32") as opened:
        yield opened


def fresh(model: graphml.Model, ids: list[int]) -> Floats:
    with model.session() as session:
        return session.eval(ids)


def test_a_state_is_not_cut_back(model: graphml.Model) -> None:
    assert model.executor.recurrent
    session = model.session()
    session.eval(IDS[:20])
    session.rewind(13)
    assert session.tokens == IDS[:13]
    assert session.sample() == int(fresh(model, IDS[:13]).argmax())  # its logits are made again
    assert nmse(session.eval(IDS[40:43]), fresh(model, [*IDS[:13], *IDS[40:43]])) < CLOSE
    session.rewind(5)
    rows = session.eval(IDS[20:24], all_logits=True)
    assert rows.shape == (4, model.n_vocab)
    assert nmse(rows[-1], fresh(model, [*IDS[:5], *IDS[20:24]])) < CLOSE
    session.rewind(0)
    assert nmse(session.eval(IDS[:9]), fresh(model, IDS[:9])) < CLOSE


def test_a_rewind_goes_back_to_the_end_of_a_prompt_before(model: graphml.Model) -> None:
    """The four latest are kept; those behind the place are gone, for other tokens follow it."""
    session = model.session()
    for end in (10, 13, 20, 26, 33):
        session.eval(IDS[session.n_past : end])
    for length, found in ((30, 26), (26, 26), (25, 20), (15, 13), (12, 0)):
        session.rewind(length)
        assert session.sequence().n_computed == found
        row = session.eval([*IDS[length:40], *IDS[50:52]])
        assert nmse(row, fresh(model, [*IDS[:40], *IDS[50:52]])) < CLOSE
        session.rewind(length)


def test_single_tokens_keep_no_states(model: graphml.Model) -> None:
    session = model.session()
    session.eval(IDS[:10])
    for token in IDS[10:16]:
        session.eval([token])
    session.rewind(14)
    assert session.sequence().n_computed == 10
    session.eval(IDS[14:20])
    assert session.sequence().states is not None
    assert [one.n for one in session.sequence().states._copies] == [10, 20]


def test_an_answer_that_is_undone_costs_the_message_and_no_more(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, evaluated, run = model.session(), [0], Runner.run

    def counts(runner: Runner, plan: StepPlan, *more: Any) -> Any:
        evaluated[0] += plan.n_rows
        return run(runner, plan, *more)

    monkeypatch.setattr(Runner, "run", counts)
    list(session.generate(IDS[:30], max_tokens=4))
    place = session.n_past
    first = [token.id for token in session.generate(IDS[40:46], max_tokens=5)]
    evaluated[0] = 0
    session.rewind(place)
    again = [token.id for token in session.generate(IDS[40:46], max_tokens=5)]
    assert again == first
    assert evaluated[0] == 1 + 6 + 4  # the last token before, which had not been evaluated; message; answer


def test_copies_of_states_are_bounded_in_bytes(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    one = memory_need(model.executor, 64).recurrent
    for room, most in ((1 << 30, 4), (2 * one, 2), (one - 1, 0)):
        monkeypatch.setattr(pinned, "COPIES_BYTES", room)
        session = model.session()
        for end in (10, 13, 20, 26, 33):
            session.eval(IDS[session.n_past : end])
        session.rewind(32)
        assert session.sequence().n_computed == (26 if most > 1 else 0)
        assert session.sequence().states is not None
        assert len(session.sequence().states._copies) == max(most - 1, 0)


def test_without_memory_for_copies_there_are_none(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pinned, "row_copies", none)
    session = model.session()
    session.eval(IDS[:10])
    session.eval(IDS[10:20])
    session.rewind(15)
    assert session.sequence().n_computed == 0
    assert nmse(session.eval([1]), fresh(model, [*IDS[:15], 1])) < CLOSE


def test_what_was_given_out_but_not_evaluated_is_rewound_for_free(model: graphml.Model) -> None:
    session = model.session()
    session.eval(IDS[:6])
    given = [token.id for token in session.generate(max_tokens=4)]
    before = session.sequence().n_computed
    session.rewind(6 + 3)
    assert session.sequence().n_computed == before == 9
    assert nmse(session.eval([5]), fresh(model, [*IDS[:6], *given[:3], 5])) < CLOSE


@pytest.mark.parametrize("step", [1, 2])
def test_a_failed_step_leaves_no_trace(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    session, calls = model.session(), itertools.count(1)
    session.eval(IDS[:10])
    program = model.executor.programs.compiled_for(8, 1).program
    run = program.run

    def fails_behind_the_step(*arguments: Any) -> Any:
        made = run(*arguments)
        if next(calls) == step:
            raise graphml.BackendError("broken")
        return made

    monkeypatch.setattr(program, "run", fails_behind_the_step)
    with pytest.raises(graphml.BackendError, match="broken"):
        session.eval(IDS[10:30])
    monkeypatch.undo()
    assert session.tokens == IDS[:10]
    assert nmse(session.eval(IDS[30:33]), fresh(model, [*IDS[:10], *IDS[30:33]])) < CLOSE


def test_a_cancelled_prompt_leaves_no_trace(model: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session, run = model.session(), Runner.run
    session.eval(IDS[:10])

    def cancels(*arguments: Any) -> Any:
        session.cancel()
        return run(*arguments)

    monkeypatch.setattr(Runner, "run", cancels)
    assert list(session.generate(IDS[10:40])) == []
    assert session.stop_reason == "cancel"
    monkeypatch.undo()
    assert session.tokens == IDS[:10]
    assert nmse(session.eval(IDS[40:43]), fresh(model, [*IDS[:10], *IDS[40:43]])) < CLOSE


def test_sequences_of_a_batch_do_not_know_each_other(model: graphml.Model) -> None:
    """Prompts of several lengths fill more than one step; then single tokens, one sequence rewound."""
    prompts = [IDS[:11], IDS[20:22], IDS[30:45]]
    with model.batch(3, n_ctx=64) as batch:
        for logits, ids in zip(batch.eval(prompts), prompts, strict=True):
            assert nmse(logits, fresh(model, ids)) < CLOSE
        assert np.isfinite(batch.eval([[1], [2], [3]])).all()
        batch.sessions[0].rewind(4)
        more = [[7, 8], [9], [10]]
        wanted = [[*IDS[:4], 7, 8], [*prompts[1], 2, 9], [*prompts[2], 3, 10]]
        for logits, ids in zip(batch.eval(more), wanted, strict=True):
            assert nmse(logits, fresh(model, ids)) < CLOSE
        one = batch.sessions[1]
        assert nmse(one.eval([4, 5, 6]), fresh(model, [*wanted[1], 4, 5, 6])) < CLOSE


def test_sessions_that_take_turns_have_states_of_their_own(model: graphml.Model) -> None:
    first, second = model.session(), model.session()
    for start in range(0, 12, 3):
        first.eval(IDS[start : start + 3])
        second.eval(IDS[30 + start : 33 + start])
    assert nmse(first.eval([1]), fresh(model, [*IDS[:12], 1])) < CLOSE
    assert nmse(second.eval([1]), fresh(model, [*IDS[30:42], 1])) < CLOSE


def test_captured_values_and_generation(model: graphml.Model) -> None:
    """What is captured is what is computed; greedy generation is eval and sample."""
    with model.session(capture="layers.1.scan") as session:
        session.eval(IDS[:20])
        scanned = session.captured["layers.1.scan"]
    with model.session(capture="layers.1.scan") as session:
        pieces = []
        for token in IDS[:20]:
            session.eval([token])
            pieces.append(session.captured["layers.1.scan"].copy())
    assert nmse(np.concatenate(pieces), scanned) < CLOSE
    session, by_hand = model.session(), []
    logits = fresh(model, IDS[:5])
    for _ in range(6):
        by_hand.append(int(logits.argmax()))
        logits = fresh(model, IDS[:5] + by_hand)
    assert [token.id for token in session.generate(IDS[:5], max_tokens=6)] == by_hand


def test_a_step_is_not_taken_again_for_the_whole_row(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the device has the top-k ids of a row alone, they are asked for only if they always tell."""
    monkeypatch.setattr(type(model.executor), "has_top_k", property(lambda executor: True))
    session = model.session()
    assert session.reads_top_k(graphml.SamplingParams(top_k=5, temperature=1.0))
    assert not session.reads_top_k(graphml.SamplingParams(top_p=0.9, temperature=1.0))


def test_the_memory_that_is_told_is_what_a_session_takes(model: graphml.Model) -> None:
    need = memory_need(model.executor, 64)
    room = model.session(n_ctx=64).sequence().room
    assert need.recurrent > 0
    assert need.cache + need.recurrent == room.runner.state.n_bytes
    assert need.cache == 64 * need.cache_per_token


def test_a_state_behind_a_window_that_was_written_over_is_gone(tmp_path: Path) -> None:
    """LFM2 with windows: what is left is evaluated again, so no copy of what was may come back."""
    path = golden.build(golden.read("lfm2-dense"), tmp_path / "lfm2.gguf")
    with graphml.load(path, threads=1, n_batch=8, kv="f32") as opened:
        ids = np.random.default_rng(0).integers(0, opened.n_vocab, 240).tolist()
        session = opened.session(n_ctx=256)
        session.eval(ids[:50])
        session.eval(ids[50:150])
        session.rewind(60)
        session.rewind(30)
        session.eval(ids[150:180])
        session.rewind(50)
        assert nmse(session.eval(ids[180:181]), fresh(opened, session.tokens)) < CLOSE
