"""The timeline of steps: rows, reasons to wait, what was found, preempted and evicted, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, pairwise
from queue import SimpleQueue
from threading import Lock

import numpy as np

from graphml.errors import BackendError
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.step_budget import StepBudget
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.loop.timeline import SequenceRows, Timeline, TimelineStep, WaitingSequence
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import BegunPlan, Computed

SIZE, BAD = 4, 66
A, B = [1] * 10, [2] * 6


class Runner:
    """Every step takes 0.5 s and gives token 0; one with the bad id raises."""

    def submit(self, plan: StepPlan, *more: object) -> None: ...

    def finish(self, begun: object, of: object) -> Computed:
        raise AssertionError

    def run(self, plan: StepPlan) -> Computed:
        if any(BAD in rows.sequence.ids for rows in plan.rows):
            raise BackendError("bad")
        return Computed([0] * plan.n_outputs, 0.5)


class Listener:
    """Says when its sequence has ended."""

    def __init__(self, ended: SimpleQueue[str]) -> None:
        self._ended = ended

    def sampled(self, token: int) -> None: ...

    def prompt_computed(self, count: int) -> None: ...
    def denoised(self) -> None: ...

    def appended(self, token: int, last: bool) -> None: ...

    def ended(self, reason: str) -> None:
        self._ended.put(reason)

    def failed(self, error: BaseException) -> None:
        self._ended.put("failed")


def steps_of(
    *rounds: list[list[int]], n_blocks: int = 16, slots: int = 4, rows: int = 32, last: int = 100
) -> list[TimelineStep]:
    """The steps of an engine that gets some prompts at once, and the next ones when all have ended.

    Each continues with three tokens; its clock counts how often it is read.
    """
    scheduler = Scheduler(BlockPool(n_blocks, SIZE), slots, n_blocks * SIZE, prompt_cap=8)
    ticks, orders = count(), count()
    loop = StepLoop(Runner(), scheduler, StepBudget(1e9, rows), clock=lambda: float(next(ticks)))
    loop.timeline = timeline = Timeline(scheduler, loop.lock, last)
    for prompts in rounds:
        ended: SimpleQueue[str] = SimpleQueue()
        made = [Sequence(Request(np.array(ids, np.int32), max_tokens=3), next(orders)) for ids in prompts]
        loop.add([(one, Listener(ended)) for one in made])
        for _ in prompts:
            ended.get(timeout=10)
    loop.close()
    return timeline.steps


def test_each_step_has_everybodys_rows_and_times() -> None:
    steps = steps_of([A, B])
    assert [step.rows for step in steps] == [
        (SequenceRows(0, 0, 8, False, False), SequenceRows(1, 0, 6, False, True)),
        (SequenceRows(1, 6, 1, True, True), SequenceRows(0, 8, 2, False, True)),
        (SequenceRows(0, 10, 1, True, True), SequenceRows(1, 7, 1, True, True)),
        (SequenceRows(0, 11, 1, True, True),),
    ]
    assert [(step.number, step.n_rows, step.n_generating) for step in steps] == [
        (0, 14, 0), (1, 3, 1), (2, 2, 2), (3, 1, 1),
    ]  # fmt: skip
    assert all(step.begin_s < step.end_s and step.compute_s == 0.5 for step in steps)
    assert all(one.end_s <= other.begin_s for one, other in pairwise(steps))
    assert {step.blocks_used + step.blocks_free for step in steps} == {16}
    assert steps[0].blocks_used == 2 + 2
    assert [step.budget for step in steps] == [32] * 4
    assert steps_of([[5]])[0].rows == (SequenceRows(0, 0, 1, False, True),)  # its prompt, of one id
    assert not any(step.waiting or step.preempted or step.failed for step in steps)


def test_why_a_sequence_waits() -> None:
    reasons = {
        "rows": steps_of([A, B], rows=8),
        "slot": steps_of([A, B], slots=1),
        "blocks": steps_of([A, B], n_blocks=4),
        "prefix": steps_of([A * 2, A * 2]),
    }
    assert {why: steps[0].waiting for why, steps in reasons.items()} == {
        why: (WaitingSequence(1, why),) for why in reasons
    }
    behind = steps_of([A, B, B], slots=1)[0].waiting
    assert behind == (WaitingSequence(1, "slot"), WaitingSequence(2, "slot"))


def test_a_running_sequence_may_be_left_out() -> None:
    scheduler = Scheduler(BlockPool(16, SIZE), 4, 64, prompt_cap=8)
    timeline = Timeline(scheduler, Lock())
    for order in (0, 1):
        scheduler.add(Sequence(Request(np.full(20, order, np.int32), priority=order), order))
    for budget in (16, 8):
        plan = scheduler.schedule(budget)
        assert plan is not None
        timeline.planned(plan, budget, 0.0)
        timeline.ended(plan, 0.5, 1.0)
        scheduler.computed(plan)
    assert [[one.sequence for one in step.rows] for step in timeline.steps] == [[1, 0], [1]]
    assert timeline.steps[1].waiting == (WaitingSequence(0, "rows"),)


def test_a_sequence_whose_blocks_are_read_waits_for_the_store() -> None:
    scheduler = Scheduler(BlockPool(16, SIZE), 4, 64)
    scheduler.admission.held_back = lambda sequence: sequence.order == 1
    timeline = Timeline(scheduler, Lock())
    for order in (0, 1, 2):
        scheduler.add(Sequence(Request(np.full(3, order, np.int32)), order))
    plan = scheduler.schedule(8)
    assert plan is not None
    timeline.planned(plan, 8, 0.0)
    timeline.ended(plan, 0.5, 1.0)
    assert timeline.steps[0].waiting == (WaitingSequence(1, "store"),)
    assert [one.sequence for one in timeline.steps[0].rows] == [0, 2]


def test_a_sequence_that_is_admitted_has_what_it_found() -> None:
    """Blocks of the same prompt: those being computed meanwhile, and those of an earlier request."""
    steps = steps_of([A, A], [A])
    found = [(one.sequence, one.start, one.found) for step in steps for one in step.rows if one.found]
    assert found == [(1, 8, 8), (2, 9, 9)]


def test_preempted_sequences_and_evicted_blocks_are_in_their_step() -> None:
    steps = steps_of([[1] * 7, [2] * 7], n_blocks=5)
    (at,) = (step for step in steps if step.preempted)
    assert at.preempted == (1,)
    assert WaitingSequence(1, "blocks") in at.waiting
    assert not any(step.evicted for step in steps_of([A], [A]))
    evicted = [step.evicted for step in steps_of([A], [B * 2], n_blocks=4)]
    assert evicted == [0, 0, 0, 2, 1, 0]  # three full ones and an empty one were free


def test_a_step_that_raises_is_one_that_failed() -> None:
    steps = steps_of([A], [[BAD]], [B])
    assert [step.failed for step in steps] == [False] * 3 + [True] + [False] * 3
    assert steps[3].compute_s == 0.0
    assert steps[3].end_s > steps[3].begin_s


def test_steps_that_a_device_has_at_once_end_in_order() -> None:
    """The second is planned before the first has ended; one that was planned before is not recorded."""
    scheduler = Scheduler(BlockPool(16, SIZE), 4, 64)
    scheduler.add(Sequence(Request(np.zeros(3, np.int32), max_tokens=9), 0))
    plans = [scheduler.schedule(8)]
    assert plans[0] is not None
    scheduler.computed(plans[0])
    plans[0].rows[0].sequence.ids.append(7)
    plans.append(scheduler.schedule(8))
    timeline = Timeline(scheduler, Lock())
    for _ in range(2):
        assert plans[-1] is not None
        plans.append(scheduler.follow(plans[-1]))
    for now, plan in enumerate(plans[2:]):
        assert plan is not None
        timeline.planned(plan, 1, float(now))
    for plan, now in zip(plans[1:], (2.0, 3.0, 4.0), strict=True):
        assert plan is not None
        timeline.ended(plan, 0.5, now)
    assert [(step.rows[0].start, step.begin_s, step.end_s) for step in timeline.steps] == [
        (4, 0.0, 3.0), (5, 3.0, 4.0),
    ]  # fmt: skip
    assert all(step.n_generating == 1 for step in timeline.steps)
    timeline.planned(plans[-1], 1, 5.0)
    timeline.failed(6.0)
    assert timeline.steps[-1].failed


def test_the_latest_steps_are_kept() -> None:
    assert [step.number for step in steps_of([A], last=2)] == [1, 2]


class Losing:
    """Submits steps, and now and then cannot submit the one after: another's came between."""

    n_begun = 0

    def run(self, plan: StepPlan) -> Computed:
        raise AssertionError

    def submit(self, plan: StepPlan, after: BegunPlan | None, wanted: object) -> BegunPlan | None:
        self.n_begun += 1
        if after is not None and self.n_begun % 3 == 0:
            return None
        return BegunPlan(plan, self.n_begun, dict, 0.0)

    def finish(self, begun: BegunPlan, of: Mapping[int, Sequence]) -> Computed:
        return Computed([1] * len(of), 0.001, device_tokens=(1,) * len(begun.plan.rows))


def test_steps_that_were_planned_and_not_submitted_are_not_waited_for() -> None:
    scheduler = Scheduler(BlockPool(40, 4), 2, 64)
    loop = StepLoop(Losing(), scheduler, StepBudget(0.05, 64))
    timeline = loop.timeline = Timeline(scheduler, loop.lock)
    ended: SimpleQueue[str] = SimpleQueue()
    loop.add([(Sequence(Request(np.arange(6, dtype=np.int32), max_tokens=30), 0), Listener(ended))])
    ended.get(timeout=60)
    loop.close()
    assert not timeline._begun
    assert [step.rows[0].start for step in timeline.steps] == [0, *range(6, 35)]
