"""The loop of an engine without a model: who is woken at its end, and what is done between steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue

import numpy as np
import pytest

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.step_budget import StepBudget
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import BegunPlan, Computed
from tests.runtime.test_timeline import Listener, Runner


class Held(Runner):
    """Its steps wait."""

    def __init__(self) -> None:
        self.began, self.go = SimpleQueue[None](), threading.Event()

    def run(self, plan: StepPlan) -> Computed:
        self.began.put(None)
        self.go.wait(20)
        return super().run(plan)


class FullDisk:
    """A store that cannot be written."""

    def __init__(self, said: SimpleQueue[str]) -> None:
        self._said = said

    def load(self) -> None: ...

    def save(self) -> None: ...

    def close(self, keep: bool = True) -> None:
        self._said.put("closed")
        raise OSError("no space left")


def loop_of(runner: Runner, n_blocks: int = 100) -> StepLoop:
    return StepLoop(runner, Scheduler(BlockPool(n_blocks, 4), 2, n_blocks * 4), StepBudget(0.05, 64))


def asked(loop: StepLoop, ended: SimpleQueue[str], max_tokens: int) -> None:
    request = Request(np.arange(6, dtype=np.int32), max_tokens=max_tokens)
    loop.add([(Sequence(request, 0), Listener(ended))])


def test_readers_are_woken_at_the_end_though_a_store_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda given: None)
    runner, said = Held(), SimpleQueue[str]()
    loop = loop_of(runner)
    loop.prefixes, loop.wake_readers = FullDisk(said), lambda: said.put("woken")
    asked(loop, said, 300)
    runner.began.get(timeout=20)
    loop.ask_to_close()
    runner.go.set()
    loop.close()
    assert [said.get() for _ in range(said.qsize())][-3:] == ["cancel", "woken", "closed"]


class Submitting(Runner):
    """Submits every step before the one before it is read. In its fifth, another thread asks for a pause."""

    def __init__(self) -> None:
        self.loop: StepLoop | None = None
        self.n_begun = self.n_finished = 0
        self.paused: list[int] = []
        self.asking: threading.Thread | None = None

    def submit(self, plan: StepPlan, *more: object) -> BegunPlan | None:  # type: ignore[override]
        self.n_begun += 1
        return BegunPlan(plan, self.n_begun, dict, 0.0)

    def finish(self, begun: BegunPlan, of: Mapping[int, Sequence]) -> Computed:  # type: ignore[override]
        self.n_finished += 1
        loop = self.loop
        if self.n_finished == 5 and loop is not None:
            pause = threading.Thread(
                target=lambda: loop.between_steps(lambda: self.paused.append(self.n_finished))
            )
            self.asking = pause
            pause.start()
            while not loop._between._calls.qsize():
                time.sleep(0.001)
        return Computed([1] * len(of), 0.001, device_tokens=(1,) * len(begun.plan.rows))


def test_what_is_done_between_steps_waits_for_two_steps_at_most() -> None:
    runner, ended = Submitting(), SimpleQueue[str]()
    runner.loop = loop = loop_of(runner)
    asked(loop, ended, 200)
    assert ended.get(timeout=20) == "length"
    assert runner.asking is not None
    runner.asking.join(20)
    loop.close()
    assert runner.n_finished >= 200
    assert runner.paused[0] <= 7
