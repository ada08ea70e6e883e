"""The loop of an engine: sequences come in, steps are planned and run, tokens go out. One thread owns it.

Knows sequences, plans and samplers; nothing of text, and of a model only what a `Runner` gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from graphml.errors import UsageError, WeightsError
from graphml.runtime.evaluation import Floats
from graphml.runtime.scheduler import Scheduler
from graphml.runtime.sequence import Sequence, Status
from graphml.runtime.step_budget import StepBudget
from graphml.runtime.step_plan import StepPlan
from graphml.sampling import PeekableRandom, flaw_of, sampler_of


class Runs(Protocol):
    """What computes plans: a `Runner`, or a made-up one."""

    def run(self, plan: StepPlan) -> Floats:
        """The logits of a plan's output rows, in order."""


class Listener(Protocol):
    """Who gets the tokens of a sequence; called by the engine's thread, so it must not wait."""

    def sampled(self, token: int) -> str | None:
        """A token was sampled; why it ends the sequence without being a part of it, or None."""

    def appended(self, token: int, last: bool) -> str | None:
        """The token belongs to the sequence, as its last or not; why it is the last all the same, or None."""

    def ended(self, reason: str) -> None:
        """No token follows."""

    def failed(self, error: BaseException) -> None:
        """No token follows, for this reason."""


@dataclass(eq=False)
class _Member:
    """A sequence in the loop. numbers: its random generator."""

    sequence: Sequence
    listener: Listener
    numbers: PeekableRandom


class StepLoop:
    """Runs sequences to their ends, on a thread that begins with the first and ends with `close`.

    finished: called when a step or a command has been dealt with; clock: seconds, monotonic.
    """

    def __init__(
        self,
        runner: Runs,
        scheduler: Scheduler,
        budget: StepBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler, self._runner, self._budget, self._clock = scheduler, runner, budget, clock
        self.lock = threading.Lock()  # of the scheduler: held between steps' computing
        self._changed = threading.Condition(self.lock)
        self._members: dict[Sequence, _Member] = {}
        self._cancelled: list[Sequence] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self.n_steps, self.step_s = 0, 0.0

    def add(self, members: Iterable[tuple[Sequence, Listener, PeekableRandom]]) -> None:
        """Sequences of one request wait from now on, all of them or, with an error, none; from any thread."""
        made = [_Member(*one) for one in members]
        with self._changed:
            if self._closing:
                raise UsageError("engine: it was closed")
            for one in made:
                self.scheduler.check(one.sequence)
            for one in made:
                self.scheduler.add(one.sequence)
                self._members[one.sequence] = one
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="graphml-engine", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """End sequences before the next step; from any thread. Those that have ended stay as they are."""
        with self._changed:
            self._cancelled += sequences
            self._changed.notify_all()

    def close(self) -> None:
        """End all sequences and the thread; a second call does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        try:
            while True:
                plan = self._next_plan()
                if plan is None:
                    break
                if plan.rows:
                    self._step(plan)
        except BaseException as error:
            failure = error
            self._end_all(lambda one: one.listener.failed(failure))
            raise
        self._end_all(lambda one: one.listener.ended("cancel"))

    def _next_plan(self) -> StepPlan | None:
        """The next step, waited for; None where the engine is closed."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._closing:
                    return None
                self._drop_expired()
                decodes = any(one.n_generated for one in self.scheduler.running)
                plan = self.scheduler.schedule(self._budget.rows(decodes))
                if plan is not None:
                    return plan
                self._changed.wait(self._until_deadline())

    def _step(self, plan: StepPlan) -> None:
        start = self._clock()
        try:
            logits = self._runner.run(plan)
        except Exception as error:  # of this step alone
            self._fail(plan, error)
            return
        seconds = self._clock() - start
        self._budget.measured(plan.n_rows, seconds)
        with self.lock:
            self.n_steps, self.step_s = self.n_steps + 1, seconds
            self.scheduler.computed(plan)
            row = 0
            for rows in plan.rows:
                if rows.n_outputs:
                    self._continue(self._members[rows.sequence], logits[row : row + rows.n_outputs])
                row += rows.n_outputs

    def _continue(self, one: _Member, logits: Floats) -> None:
        """Sample what follows a sequence that has caught up, and end it where that ends it."""
        sequence, request = one.sequence, one.sequence.request
        try:
            token = self._sample(one, logits[-1])
            reason = one.listener.sampled(token)
            if reason is None:
                sequence.ids.append(token)
                if request.max_tokens is not None and sequence.n_generated >= request.max_tokens:
                    reason = "length"
                elif len(sequence.ids) >= self.scheduler.n_ctx:
                    reason = "context"
                reason = one.listener.appended(token, reason is not None) or reason
        except Exception as error:  # of a sampler or a listener: this sequence's own
            self._remove(one)
            one.listener.failed(error)
            return
        if reason is not None:
            self._remove(one)
            one.listener.ended(reason)

    def _sample(self, one: _Member, row: Floats) -> int:
        try:
            return sampler_of(one.sequence.request.params).sample(row, one.sequence.ids, one.numbers)
        except UsageError:
            flaw = flaw_of(row)
            if flaw is None:
                raise
        raise WeightsError(
            f"the model's logits are no numbers: {flaw}; `graphml compare` shows where they begin"
        )

    def _remove(self, one: _Member) -> None:
        self.scheduler.remove(one.sequence)
        self._members.pop(one.sequence, None)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """A step raised: its sequences fail, the others go on."""
        with self.lock:
            for rows in plan.rows:
                one = self._members[rows.sequence]
                self._remove(one)
                one.listener.failed(error)

    def _drop_cancelled(self) -> None:
        cancelled, self._cancelled = self._cancelled, []
        for sequence in cancelled:
            one = self._members.get(sequence)
            if one is not None:
                self._remove(one)
                one.listener.ended("cancel")

    def _drop_expired(self) -> None:
        now = self._clock()
        for sequence in self.scheduler.expired(now):
            one = self._members[sequence]
            self._remove(one)
            one.listener.ended("deadline")

    def _until_deadline(self) -> float | None:
        waiting = [one.request.deadline for one in self.scheduler.waiting if one.request.deadline is not None]
        return max(0.0, min(waiting) - self._clock()) if waiting else None

    def _end_all(self, tell: Callable[[_Member], None]) -> None:
        with self.lock:
            self._closing = True
            for one in list(self._members.values()):
                if one.sequence.status is not Status.FINISHED:
                    self._remove(one)
                tell(one)
            self._members.clear()
