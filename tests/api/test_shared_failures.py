"""Sessions that share steps, one of which fails or is interrupted: the others notice nothing."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphml
from graphml.errors import BackendError
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import Computed
from graphml.runtime.steps.runner import Read, Runner
from tests import tiny_model
from tests.api import remembering
from tests.api.threads import COUNT, PROMPTS, Use, in_threads, is_right, wanted
from tests.api.tokens import greedy_ids


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[graphml.Model]:
    """Logits say which ids a step has read; a step takes long enough for others to come."""
    with remembering.load(tiny_model.write(tmp_path / "tiny.gguf"), shares=True, step_s=0.002) as model:
        yield model


def test_an_error_is_of_the_session_whose_step_it_is(
    slow: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever rows of one session are in a step, it fails; the others are computed again without it."""
    sessions = [slow.session(64) for _ in PROMPTS]
    for session, ids in zip(sessions, PROMPTS, strict=True):
        session.eval(ids)
    bad = sessions[2]._held.rolled_back()
    run, failed = Runner.run, list[int]()

    def failing(runner: Runner, plan: StepPlan, read: Read) -> Computed:
        computed = run(runner, plan, read)
        if any(rows.sequence is bad for rows in plan.rows):
            failed.append(len(plan.rows))
            raise BackendError("on purpose")
        return computed

    monkeypatch.setattr(Runner, "run", failing)

    def together() -> bool:
        return max(failed, default=0) > 1

    def fails() -> None:
        while len(failed) < 5 or (len(failed) < 1000 and not together()):
            with pytest.raises(BackendError, match="on purpose"):
                sessions[2].eval([9])

    def goes_on(session: graphml.Session, n_prompt: int) -> None:
        """Again where it has met the failing one in no step."""
        list(session.generate(max_tokens=COUNT))
        while not together() and len(failed) < 1000:
            session.rewind(n_prompt)
            list(session.generate(max_tokens=COUNT))

    others = [(one, len(ids)) for one, ids in zip(sessions, PROMPTS, strict=True) if one is not sessions[2]]
    in_threads([fails, *[lambda one=one, n=n: goes_on(one, n) for one, n in others]])
    assert together()
    monkeypatch.undo()
    for session, ids in zip(sessions, PROMPTS, strict=True):
        assert session.generated == ([] if session is sessions[2] else wanted(slow, ids))
        assert session.tokens == [*ids, *session.generated]
        assert is_right(session)


class Interrupted(BaseException):
    """As KeyboardInterrupt, in a thread other than the first."""


def interrupt(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))


def test_an_interrupted_thread_disturbs_no_other(slow: graphml.Model) -> None:
    """Interrupted at random moments, leading or waiting; it and all others hold what they say."""
    sessions = [slow.session(64) for _ in PROMPTS[:4]]
    ended, n_rounds = threading.Event(), list[int]()

    def interrupted() -> None:
        session, chance, me = sessions[0], random.Random(1), [threading.get_ident()]
        for _ in range(25):
            session.rewind(0)
            try:
                threading.Timer(chance.uniform(0, 0.05), interrupt, me).start()
                list(session.generate(PROMPTS[0], max_tokens=COUNT))
                while True:
                    time.sleep(0.001)
            except Interrupted:
                pass
            assert not session.tokens or is_right(session)

    def others(i: int) -> None:
        session = sessions[i]
        while not ended.is_set():
            session.rewind(0)
            assert greedy_ids(session, PROMPTS[i], COUNT) == wanted(slow, PROMPTS[i])
            n_rounds.append(i)

    in_threads([ending(interrupted, ended), *[lambda i=i: others(i) for i in range(1, 4)]])
    assert set(n_rounds) == {1, 2, 3}


def ending(use: Use, ended: threading.Event) -> Use:
    """The same, after which others end too."""

    def run() -> None:
        try:
            use()
        finally:
            ended.set()

    return run
