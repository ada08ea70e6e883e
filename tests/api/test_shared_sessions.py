"""Sessions of one model in several threads share steps and prompts; each is as if it was alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.ir.op import Array
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.sessions import shared_steps
from graphml.runtime.steps.computed_plan import Computed
from graphml.runtime.steps.runner import Read, Runner
from tests import golden, tiny_model
from tests.adapter_files import pairs_of, write_adapter, write_model
from tests.api import remembering
from tests.api.threads import COUNT, PROMPTS, Use, in_threads, is_right, wanted
from tests.api.tokens import greedy_ids

SYSTEM = [10 + i * i % 90 for i in range(70)]  # two blocks and six ids


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("shared") / "tiny.gguf")


@pytest.fixture
def slow(path: Path) -> Iterator[graphml.Model]:
    """Logits say which ids a step has read; a step takes long enough for others to come."""
    with remembering.load(path, shares=True, step_s=0.002) as model:
        yield model


@pytest.fixture(scope="module")
def real(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, "cpu", threads=1, n_batch=32, kv="f32", deterministic=True) as model:
        yield model


def test_threads_share_steps(slow: graphml.Model) -> None:
    found: dict[int, list[int]] = {}
    sessions = [slow.session(64) for _ in PROMPTS]

    def use(i: int) -> Use:
        return lambda: found.update({i: greedy_ids(sessions[i], PROMPTS[i], COUNT)})

    in_threads([use(i) for i in range(6)])
    assert [found[i] for i in range(6)] == [wanted(slow, ids) for ids in PROMPTS]
    assert slow.executor.n_steps < 6 * COUNT / 2


def test_same_bits_as_alone(real: graphml.Model) -> None:
    """On the CPU; prompts of several batches, one of which others need not wait for."""
    prompts = [[(i * 31 + j * 7) % 90 + 5 for j in range(3 + 11 * i)] for i in range(6)]
    with real.session(128) as one:
        alone = []
        for ids in prompts:
            one.rewind(0)
            alone.append((greedy_ids(one, ids, 12), one.logits))
    sessions = [real.session(128) for _ in prompts]
    in_threads([lambda i=i: list(sessions[i].generate(prompts[i], max_tokens=12)) for i in range(6)])
    for session, (ids, logits) in zip(sessions, alone, strict=True):
        assert session.generated == ids
        np.testing.assert_array_equal(session.logits, logits)


def test_a_lone_session_has_the_programs_of_one_sequence(path: Path) -> None:
    """Nothing for several sequences is compiled before two threads meet."""
    with remembering.load(path, shares=True) as model:
        first, second = model.session(64), model.session(64)
        for session in (first, second):
            list(session.generate([5, 6, 7], max_tokens=3))
        assert {key[:3] for key in model.executor.programs._programs} == {(1, 1, 1), (8, 1, 1)}
        second.close()
        used: list[object] = []
        first._held.rolled_back().room.steps.run = lambda *given: used.append(given)  # type: ignore
        first.eval([4])
        assert not used  # alone, it takes no turn either


def test_a_prompt_that_another_session_holds_is_not_computed(real: graphml.Model) -> None:
    with real.session(128) as alone:
        logits = alone.eval([*SYSTEM, 7, 8, 9])
        assert alone.stats.n_cached == 0
    first, second, third = (real.session(128) for _ in range(3))
    first.eval([*SYSTEM, 3])
    before = real.executor.n_steps
    np.testing.assert_array_equal(second.eval([*SYSTEM, 7, 8, 9]), logits)
    assert (second.stats.n_prompt, second.stats.n_cached) == (73, 64)
    assert real.executor.n_steps == before + 1
    np.testing.assert_array_equal(first.eval([7]), second_after(real, [*SYSTEM, 3, 7]))
    first.close()
    second.rewind(10)
    assert third.eval([*SYSTEM[:40], 5, 6]) is not None
    assert third.stats.n_cached == 32  # of the closed one
    second.eval([*SYSTEM[10:], 7, 8, 9])
    assert second.stats.n_cached == 54
    with real.session(128, prefix_cache=False) as computed:
        np.testing.assert_array_equal(computed.eval([*SYSTEM, 7, 8, 9]), logits)
        assert computed.stats.n_cached == 0
        assert len(computed.eval([*SYSTEM[:20]], all_logits=True)) == 20


def second_after(model: graphml.Model, ids: list[int]) -> Array:
    """The logits after ids, in steps of a session that finds nothing."""
    with model.session(128, prefix_cache=False) as session:
        session.eval(ids[:-1])
        return session.eval(ids[-1:])


def test_a_prompt_that_another_thread_computes_is_awaited(slow: graphml.Model) -> None:
    sessions = [slow.session(128) for _ in range(4)]
    in_threads([lambda one=one, i=i: one.eval([*SYSTEM, 90 + i, 5]) for i, one in enumerate(sessions)])
    assert sorted(one.stats.n_cached for one in sessions) == [0, 64, 64, 64]
    assert all(map(is_right, sessions))


def test_sessions_come_and_go_in_any_order(slow: graphml.Model) -> None:
    """More than a group has room for; given back when closed or forgotten, and then empty again."""
    chance = random.Random(3)
    held: list[graphml.Session] = []
    for number in range(60):
        if held and (len(held) > 11 or chance.random() < 0.4):
            one = held.pop(chance.randrange(len(held)))
            if number % 2:
                one.close()
            del one
        else:
            made = slow.session(128)
            assert made.tokens == []
            made.eval([*SYSTEM[: chance.randrange(1, 70)], number + 5])
            held.append(made)
        assert all(map(is_right, held[:: 1 + number % 3]))
    rooms = {id(one._held.rolled_back().room) for one in held}
    assert len(rooms) > 1 or len(held) <= 8
    for one in held:
        one.close()
    del one, made
    held.clear()
    assert not len(slow.executor.shared_rooms)


def test_every_use_beside_others(real: graphml.Model, tmp_path: Path) -> None:
    """Fork, shift, rewind, save and restore of one session, while others generate: as without them."""

    def use(folder: Path) -> list[Array]:
        session = real.session(128, seed=3, prefix_cache=False)
        session.eval(SYSTEM[:50])
        fork = session.fork()
        session.shift(4, 20)
        list(fork.generate([9, 8], max_tokens=6))
        session.eval([5, 6])
        file = folder / "one.safetensors"
        session.save(file)
        again = real.restore(file)
        assert isinstance(again, graphml.Session)
        session.rewind(11)
        list(session.generate([77], max_tokens=5))
        rows = [one.eval([12]) for one in (session, fork, again)]
        for one in (fork, session, again):
            one.close()
        return rows

    (tmp_path / "a").mkdir()
    alone, found, ended = use(tmp_path / "a"), list[list[Array]](), threading.Event()

    def others() -> None:
        with real.session(128) as session:
            while not ended.is_set():
                session.rewind(0)
                list(session.generate(SYSTEM[:40], max_tokens=10))

    def many() -> None:
        try:
            for _ in range(4):
                found.append(use(tmp_path))
        finally:
            ended.set()

    in_threads([many, others, others])
    assert len(found) == 4
    for rows in found:
        for row, one in zip(rows, alone, strict=True):
            np.testing.assert_array_equal(row, one)


def test_cancel_ends_one_session_alone(slow: graphml.Model) -> None:
    first, second = slow.session(160), slow.session(64)
    done = threading.Event()

    def runs() -> None:
        list(first.generate(PROMPTS[0], overflow="shift"))  # which never ends
        done.set()

    def cancels() -> None:
        list(second.generate(PROMPTS[1], max_tokens=COUNT))
        first.cancel()

    in_threads([runs, cancels])
    assert (first.stop_reason, second.stop_reason) == ("cancel", "length")
    assert second.generated == wanted(slow, PROMPTS[1])
    assert is_right(first)


def test_a_long_prompt_takes_turns_with_others(slow: graphml.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two chunks of it, whoever waits has a step."""
    rows: list[int] = []
    run = Runner.run

    def seen(runner: Runner, plan: StepPlan, read: Read) -> Computed:
        rows.append(max(one.count for one in plan.rows))
        return run(runner, plan, read)

    monkeypatch.setattr(shared_steps, "_MOST_WAIT_S", 0.05)
    monkeypatch.setattr(Runner, "run", seen)
    long, short = slow.session(160), slow.session(160)
    ids = [5 + i * i % 91 for i in range(120)]  # fifteen chunks
    begun, ended = threading.Event(), threading.Event()

    def computes() -> None:
        begun.wait(10)
        long.eval(ids)
        ended.set()

    def generates() -> None:
        for _ in short.generate([5], max_tokens=150):
            begun.set()
            if ended.is_set():
                break

    in_threads([computes, generates])
    first, last = rows.index(8), len(rows) - rows[::-1].index(8)
    assert rows[first:last].count(1) > 4
    assert short.generated == wanted(slow, [5], len(short.generated))
    assert is_right(long)


def test_chats_with_the_same_system_message(real: graphml.Model) -> None:
    system = "be kind and answer with few words"
    counts, answers = [], []
    chats = [real.chat(max_tokens=4, system=system) for _ in range(2)]
    for chat in (*chats, chats[0]):
        chat.add_user("hello world")
        answers.append(chat.respond())
        counts.append(chat.session.stats.n_cached)
    assert counts[0] == counts[2] == 0
    assert 32 <= counts[1] < len(chats[1].session.prompt_ids)
    assert answers[0] == answers[1]
    assert chats[1].session.prompt_ids == chats[0].session.tokens[: len(chats[1].session.prompt_ids)]


def test_a_session_with_adapters_shares_nothing(tmp_path: Path) -> None:
    made = golden.read("llama-dense")
    pairs = pairs_of(made, ["blk.0.attn_v.weight"], 4, seed=1)
    lora = [(write_adapter(tmp_path / "adapter.gguf", pairs), 3.0)]
    ids = [*made.tokens, *made.tokens[::-1], *made.tokens]
    with graphml.load(write_model(tmp_path / "model.gguf", made), kv="f32") as model:
        one, other, plain = model.session(128), model.session(128, lora=lora), model.session(128)
        one.set_lora(lora)
        np.testing.assert_array_equal(one.eval(ids), other.eval(ids))
        plain.eval(ids)
        assert (one.stats.n_cached, other.stats.n_cached, plain.stats.n_cached) == (0, 0, 0)
        found = model.session(128)
        found.eval(ids)
        assert found.stats.n_cached


def test_what_was_computed_with_adapters_is_not_shared_later(tmp_path: Path) -> None:
    made = golden.read("llama-dense")
    pairs = pairs_of(made, ["blk.0.attn_v.weight"], 4, seed=1)
    lora = [(write_adapter(tmp_path / "adapter.gguf", pairs), 3.0)]
    ids = [*made.tokens, *made.tokens[::-1], *made.tokens]
    with graphml.load(write_model(tmp_path / "model.gguf", made), kv="f32") as model:
        session = model.session(128, lora=lora)
        session.eval(ids)
        session.set_lora([])
        session.save(tmp_path / "saved")
        others = [session.fork(), model.restore(tmp_path / "saved")]
        plain = model.session(128)
        plain.eval(ids)
        assert plain.stats.n_cached == 0
        assert [other.n_past for other in others] == [len(ids)] * 2
