"""A replica whose steps take the seconds of a cost model: the engine's own scheduler, budget and delivery.

Steps in which every sequence only goes on by a token are taken many at once: what they do is known without
asking the scheduler. Knows one engine; nothing of other replicas, routing or arrivals.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.step_budget import FEWEST, StepBudget
from graphml.runtime.loop.token_delivery import LoopMember, TokenDelivery
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import Computed
from graphml.sampling import SamplingParams
from graphml.simulation.arrivals import Arrival
from graphml.simulation.cost_model import CostModel, contexts
from graphml.simulation.simulation_report import Gaps

PARAMS = SamplingParams()
SETTLED = 64
"""Equal steps behind which the average of a budget does not move any more."""


@dataclass(eq=False)
class SimulatedAnswer:
    """A request and what has come of it. prefix_id: the token that its shared beginning is made of.

    first_s, latest_s: when its first and latest token came; below 0: none. A `Listener` of its sequence.
    """

    arrival: Arrival
    number: int
    prefix_id: int
    asked_s: float = 0.0
    first_s: float = -1.0
    latest_s: float = -1.0
    n_tokens: int = 0
    n_cached: int = 0
    n_asked: int = 0
    replica: SimulatedReplica | None = field(default=None, repr=False)

    def sampled(self, token: int) -> None:
        """A token is never a reason to end."""

    def appended(self, token: int, last: bool) -> None:
        """The token comes at the end of the step."""
        assert self.replica is not None
        self.token(self.replica.now, self.replica.gaps)

    def token(self, now: float, gaps: Gaps) -> None:
        """A token comes."""
        if self.first_s < 0:
            self.first_s = now
        else:
            gaps.add(now - self.latest_s)
        self.latest_s = now
        self.n_tokens += 1

    def prompt_computed(self, count: int) -> None:
        """Nobody watches."""

    def denoised(self) -> None:
        """Never: no diffusion model is simulated."""

    def ended(self, reason: str) -> None:
        """All tokens have come."""
        assert self.replica is not None
        self.replica.ended.append(self)

    def failed(self, error: BaseException) -> None:
        """Never: nothing is computed."""
        raise error

    def ids(self) -> np.ndarray:
        """Its prompt: tokens that nobody else has, behind those of its beginning."""
        ids = np.full(self.arrival.n_prompt, self.number, np.int32)
        ids[: self.arrival.n_prefix] = self.prefix_id
        return ids


class SimulatedReplica:
    """An engine and its clock. next_s: when its step ends; infinite while it has none.

    at_once: whether steps are taken many at once. answers: under way; ended: since they were taken.
    """

    def __init__(self, name: str, cost: CostModel, gaps: Gaps, at_once: bool = True) -> None:
        self.name, self.gaps, self.now, self.next_s = name, gaps, 0.0, math.inf
        self._cost, self._at_once = cost, at_once
        self._pool = BlockPool(cost.n_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(self._pool, cost.parallel, cost.n_ctx, max_chunk=cost.max_chunk)
        self._budget = StepBudget(cost.target_s, cost.n_batch)
        self._delivery = TokenDelivery(self.scheduler)
        self._plan: StepPlan | None = None
        self._plan_s = 0.0
        self._leap = 0
        self._first_s = self._growth_s = 0.0
        self._n_order = 0
        self.answers: dict[Sequence, SimulatedAnswer] = {}
        self.ended: list[SimulatedAnswer] = []
        self.busy_s, self.n_steps, self.n_preempted = 0.0, 0, 0

    @property
    def share_used(self) -> float:
        """The share of its blocks that somebody holds."""
        return self._pool.n_used / self._pool.n_blocks

    def submit(self, answer: SimulatedAnswer, now: float) -> bool:
        """A request waits; False where the engine refuses it."""
        request = Request(answer.ids(), PARAMS, max_tokens=answer.arrival.n_answer)
        sequence = Sequence(request, self._n_order)
        answer.replica = self
        try:
            self._delivery.add([LoopMember(sequence, answer)])
        except UsageError:
            return False
        self._n_order += 1
        self.answers[sequence] = answer
        if self.next_s == math.inf:
            self._begin(now)
        elif self._leap and self.scheduler.has_slot:
            self._leap = min(self._leap, self._n_done(now) + 1)
            self.next_s = self.now + self._leap_s(self._leap)
        return True

    def step(self) -> list[SimulatedAnswer]:
        """The step that ends at `next_s` ends, and the next one begins; the answers that have ended."""
        begin, self.now = self.now, self.next_s
        self.busy_s += self.now - begin
        if self._leap:
            self._leaped(self._leap, begin)
        elif self._plan is not None:
            plan, self._plan = self._plan, None
            self.n_steps += 1
            self._budget.measured(plan.n_ids, self._plan_s)
            numbers = [self.answers[sequence].number for sequence in plan.sampled.values()]
            self._delivery.deliver(plan, Computed(list(numbers), self._plan_s))
        ended, self.ended = self.ended, []
        if ended:
            gone = {id(answer) for answer in ended}
            for sequence, answer in list(self.answers.items()):
                if id(answer) in gone:
                    answer.n_cached = max(sequence.n_cached, 0)
                    self.n_preempted += sequence.n_preempted
                    del self.answers[sequence]
        self._begin(self.now)
        return ended

    def stop(self, now: float) -> list[SimulatedAnswer]:
        """It dies: the answers under way, with the tokens that they have had."""
        if self.next_s < math.inf:
            self.busy_s += now - self.now
            if self._leap:
                self._leaped(self._n_done(now), self.now, computes=False)
        self.next_s = math.inf
        return list(self.answers.values())

    def _begin(self, now: float) -> None:
        """The next step begins, or it waits."""
        self.now, self.next_s = now, math.inf
        self._leap = self._steps_at_once() if self._at_once else 0
        running = self.scheduler.running
        if self._leap:
            n = len(running)
            n_context = sum(len(sequence.ids) for sequence in running)
            self._first_s = self._cost.step_s(n, n, n_context)
            self._growth_s = self._cost.context_s * n
            self.next_s = now + self._leap_s(self._leap)
            return
        plan = None
        while self.scheduler and (plan is None or not plan.all_rows):
            n_decoding = sum(sequence.n_behind <= 1 for sequence in running)
            plan = self.scheduler.schedule(self._budget.rows(n_decoding, self.scheduler.n_prompts))
            if plan is None:
                return
        if plan is not None:
            cells = contexts((rows.start, rows.count) for rows in plan.rows)
            self._plan, self._plan_s = plan, self._cost.step_s(plan.n_rows, plan.n_outputs, *cells)
            self.next_s = now + self._plan_s

    def _steps_at_once(self) -> int:
        """Steps from now on in which each running sequence gets one token, and none ends, whoever comes.

        0: fewer than two, or others may start.
        """
        scheduler = self.scheduler
        running = scheduler.running
        if not running or (scheduler.waiting and scheduler.has_slot):
            return 0
        n_steps = scheduler.n_ctx
        for sequence in running:
            if sequence.n_behind != 1 or not sequence.n_generated:
                return 0
            most = sequence.request.max_tokens
            assert most is not None
            n_steps = min(n_steps, most - sequence.n_generated - 1, scheduler.n_ctx - len(sequence.ids) - 1)
        while n_steps > 1 and self._blocks(n_steps) > self._pool.n_free:
            n_steps //= 2
        return n_steps if n_steps > 1 else 0

    def _blocks(self, n_steps: int) -> int:
        return sum(sequence.blocks_needed(n_steps, BLOCK_SIZE) for sequence in self.scheduler.running)

    def _leap_s(self, n_steps: int) -> float:
        """Seconds of the first of the steps that are taken at once: each attends to more than the last."""
        return n_steps * self._first_s + self._growth_s * n_steps * (n_steps - 1) / 2

    def _n_done(self, now: float) -> int:
        """How many of them have ended."""
        return bisect_right(range(1, self._leap + 1), now - self.now, key=self._leap_s)

    def _leaped(self, n_steps: int, begin: float, computes: bool = True) -> None:
        """So many steps have ended. computes: their blocks are held; not of an engine that has died."""
        running, self._leap = self.scheduler.running, 0
        if not n_steps:
            return
        seconds = self._leap_s(n_steps)
        self.n_steps += n_steps
        self.gaps.add(seconds / n_steps, n_steps * len(running))
        for sequence in running:
            answer = self.answers[sequence]
            answer.n_tokens += n_steps
            answer.latest_s = begin + seconds
            if computes:
                blocks = self._pool.allocate(sequence.blocks_needed(n_steps, BLOCK_SIZE))
                assert blocks is not None  # `_steps_at_once` has seen to that
                sequence.blocks += blocks
                sequence.ids += [answer.number] * n_steps
                sequence.advance(n_steps, self._pool)
        if len(running) >= FEWEST:
            for _ in range(min(n_steps, SETTLED)):
                self._budget.measured(len(running), seconds / n_steps)
