"""Several plans under way, without a model: stages compute in order, and tokens come later."""

from __future__ import annotations

import random
from collections import deque
from queue import SimpleQueue

import numpy as np
import pytest

from graphml.errors import BackendError, StatesLostError
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.overflow import Overflow
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.step_budget import StepBudget
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.loop.timeline import Timeline
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.plans.step_plan import Rows, StepPlan
from graphml.runtime.steps.computed_plan import Computed, PlanUnderWay
from tests.runtime.made_up_runner import SIZE, alone, keys_of, next_id

GARBAGE = -1
KINDS = ["attention", "recurrent"]


class Asking:
    """The listener of one sequence: what became of it."""

    def __init__(self, ended: SimpleQueue[str]) -> None:
        self._ended, self.reason, self.progress = ended, "", list[int]()

    def sampled(self, token: int) -> None: ...

    def prompt_computed(self, count: int) -> None:
        self.progress.append(count)

    def denoised(self) -> None: ...

    def appended(self, token: int, last: bool) -> None: ...

    def ended(self, reason: str) -> None:
        self.reason = reason
        self._ended.put(reason)

    def failed(self, error: BaseException) -> None:
        self.reason = repr(error)
        self._ended.put("failed")


class Staged:
    """Writes a plan's cells when it is submitted, and samples when it is read; some plans fail.

    It looks at what each row sees when the plan is read: one that follows a failed one sees garbage, and must
    never be read.
    """

    def __init__(self, scheduler: Scheduler, chance: random.Random, failing: float) -> None:
        self.scheduler, self._chance, self._failing = scheduler, chance, failing
        n_cells = scheduler.pool.n_blocks * SIZE
        self.cells = [GARBAGE] * n_cells
        self.states: dict[int, tuple[int, ...]] = {}
        self.copies: dict[int, tuple[int, ...]] = {}
        self.under_way: deque[StepPlan] = deque()
        self.most = self.n_restarts = self.n_failed = self.n_ahead = 0
        self.shares: list[tuple[int, int]] = []
        self.wrong: list[str] = []
        self.between = lambda: None

    def begin(self, plan: StepPlan) -> PlanUnderWay:
        self.between()
        decided = {rows.sequence for before in self.under_way for rows in before.rows if not rows.is_known}
        self.n_ahead += any(
            rows.sequence is before.sequence for rows in plan.rows for plan_before in self.under_way
            for before in plan_before.rows
        )  # fmt: skip
        running = [one for one in self.scheduler.running if one.n_behind == 1]
        self.shares.append((sum(rows.count == 1 for rows in plan.rows), len(running)))
        assert not decided & {rows.sequence for rows in plan.rows}
        assert not (plan.preempted and self.under_way)
        self.under_way.append(plan)
        self.most = max(self.most, len(self.under_way))
        fate = self._chance.random()
        error: Exception | None = None
        if fate < self._failing:
            error = BackendError("it failed") if fate < self._failing / 2 else StatesLostError("it ended")
        self._before(plan)
        seen = [self._row(rows, error is not None) for rows in plan.rows]
        tokens = [next_id(sequence.ids) for sequence in plan.sampled.values()]

        def computed() -> Computed:
            assert self.under_way.popleft() is plan
            if error is not None:
                self.n_failed += 1
                raise error
            self.wrong += [wrong for wrong in seen if wrong]
            return Computed(list(tokens), 0.001)

        return PlanUnderWay(plan, computed, self.under_way.popleft)

    def _before(self, plan: StepPlan) -> None:
        for rows in plan.rows:
            if rows.restore is not None:
                self.states[rows.sequence.slot] = self.copies[rows.restore]
        for rows in plan.rows:
            if rows.states_of is not None:
                self.states[rows.sequence.slot] = self.states[rows.states_of]
            for move in rows.moves:
                for source, target in zip(move.sources.tolist(), move.targets.tolist(), strict=True):
                    self.cells[target] = self.cells[source]

    def _row(self, rows: Rows, fails: bool) -> str:
        one, wrong = rows.sequence, ""
        keys = keys_of(one.ids)
        if self.scheduler.checkpoints is not None:
            before = self.states.get(one.slot, ()) if rows.start else ()
            if before != tuple(one.ids[: rows.start]):
                wrong = f"states of {one.order}: {before}"
            self.states[one.slot] = () if fails else tuple(one.ids[: rows.start + rows.count])
        if not one.moved:
            held = [self.cells[one.blocks[p // SIZE] * SIZE + p % SIZE] for p in range(rows.start)]
            if held != keys[: rows.start]:
                wrong = f"cells of {one.order} before {rows.start}"
        for p in range(rows.start, rows.start + rows.count):
            self.cells[one.blocks[p // SIZE] * SIZE + p % SIZE] = GARBAGE if fails else keys[p]
        if rows.keep is not None:
            self.copies[rows.keep] = self.states[one.slot]
        return wrong

    def run(self, plan: StepPlan) -> Computed:
        raise AssertionError

    submit = finish = run

    def restart(self) -> None:
        self.n_restarts += 1
        self.cells[:] = [GARBAGE] * len(self.cells)
        self.states.clear()


def play(seed: int, kind: str = "attention", failing: float = 0.0, n_requests: int = 30) -> Staged:
    """Random requests, of which some are cancelled and some fail; what is left is as if each were alone."""
    chance = random.Random(seed)
    n_blocks, n_plans = chance.randint(6, 24), chance.randint(2, 4)
    n_ctx = chance.randint(6, n_blocks * SIZE)
    recurrent = kind == "recurrent"
    checkpoints = Checkpoints(chance.randint(1, 9), SIZE, True, SIZE) if recurrent else None
    scheduler = Scheduler(
        BlockPool(n_blocks, SIZE), chance.randint(1, 7), n_ctx, chance.randint(1, 12),
        recurrent=recurrent, checkpoints=checkpoints,
    )  # fmt: skip
    runner = Staged(scheduler, random.Random(seed + 1), failing)
    loop = StepLoop(runner, scheduler, StepBudget(0.05, 64), n_plans=n_plans)
    loop.timeline = timeline = Timeline(scheduler, loop.lock)
    ended: SimpleQueue[str] = SimpleQueue()
    asked: list[tuple[Sequence, Asking, list[int]]] = []
    beginnings = [[chance.randint(0, 2) for _ in range(3 * SIZE)] for _ in range(3)]
    cancelled: set[Sequence] = set()
    calls: list[int] = []

    def more() -> None:
        if len(asked) >= n_requests:
            return
        start = chance.choice(beginnings)[: chance.randint(0, 3 * SIZE)]
        ids = (start + [chance.randint(0, 2) for _ in range(chance.randint(1, 9))])[: n_ctx - 1]
        full = Overflow("stop" if recurrent else chance.choice(["stop", "shift"]), chance.randint(-1, 5))
        request = Request(
            np.array(ids, np.int32), key=chance.choice("ab"), n=chance.choice([1, 1, 1, 3]), full=full,
            priority=chance.choice([0, 0, 1]), max_tokens=chance.randint(1, 12),
        )  # fmt: skip
        members = [(Sequence(request, len(asked) + i), Asking(ended)) for i in range(request.n)]
        asked.extend((*member, ids) for member in members)
        loop.add(members)

    def between() -> None:
        """In the engine's thread, before a plan is submitted."""
        if chance.random() < 0.5:
            more()
        if asked and chance.random() < 0.1:
            chosen, *_ = chance.choice(asked)
            cancelled.add(chosen)
            loop.cancel([chosen])

    runner.between = between
    n_ended = 0
    while n_ended < len(asked) or len(asked) < n_requests:
        if n_ended == len(asked):
            more()
        ended.get(timeout=60)
        n_ended += 1
        if n_ended % 5 == 0:  # by another thread, when nothing is under way
            calls.append(loop.between_steps(lambda: len(runner.under_way)))
    loop.close()
    assert not runner.wrong, runner.wrong
    assert loop.failure is None
    assert not any(calls)
    assert not timeline._begun
    for sequence, listener, ids in asked:
        wanted = alone(ids, sequence.request.max_tokens or 0, n_ctx, sequence.request.full)
        is_whole = listener.reason in ("length", "context")
        assert is_whole or failing or sequence in cancelled, listener.reason
        if is_whole:
            assert sequence.ids == wanted
        if not runner.n_restarts and not sequence.n_preempted:
            assert listener.progress == sorted(set(listener.progress))
    assert scheduler.pool.n_used == 0
    return runner


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_as_if_each_were_alone(kind: str) -> None:
    runners = [play(seed, kind) for seed in range(40)]
    assert max(runner.most for runner in runners) == 4
    assert sum(runner.n_ahead for runner in runners) > 20  # chunks behind chunks that are under way
    assert any(0 < share < of for runner in runners for share, of in runner.shares)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_computed_from_a_step_that_fails_is_computed_again(kind: str) -> None:
    runners = [play(seed, kind, failing=0.1) for seed in range(40)]
    assert sum(runner.n_failed for runner in runners) > 100
    assert sum(runner.n_restarts for runner in runners) > 50


def test_each_plan_has_its_share_of_the_sequences() -> None:
    """Five that wait for a token, two plans: three and two, by turns; and one's chunks follow each other."""
    scheduler = Scheduler(BlockPool(64, SIZE), 5, 64)
    runner = Staged(scheduler, random.Random(1), 0.0)
    loop = StepLoop(runner, scheduler, StepBudget(1.0, 64), n_plans=2)
    ended: SimpleQueue[str] = SimpleQueue()
    loop.add(
        [(Sequence(Request(np.array([i, i], np.int32), max_tokens=9), i), Asking(ended)) for i in range(5)]
    )
    for _ in range(5):
        assert ended.get(timeout=60) == "length"
    loop.close()
    assert runner.shares[:6] == [(0, 0), (0, 0), (2, 3), (3, 5), (2, 5), (3, 5)]
    assert runner.most == 2


def test_a_lone_prompt_is_read_in_chunks_that_follow_each_other() -> None:
    scheduler = Scheduler(BlockPool(64, SIZE), 5, 200)
    runner = Staged(scheduler, random.Random(1), 0.0)
    loop = StepLoop(runner, scheduler, StepBudget(1.0, 64), n_plans=2)
    ended: SimpleQueue[str] = SimpleQueue()
    listener = Asking(ended)
    loop.add([(Sequence(Request(np.arange(150, dtype=np.int32), max_tokens=3), 0), listener)])
    assert ended.get(timeout=60) == "length"
    loop.close()
    assert listener.progress == [32, 64, 96, 128, 150]
    assert (runner.n_ahead, runner.most, runner.wrong) == (4, 2, [])
