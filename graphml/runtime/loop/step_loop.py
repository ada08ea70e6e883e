"""The loop of an engine: sequences come in, steps are planned and run, tokens go out. One thread runs it.

Knows sequences and plans; nothing of text, and of a model only what a `Runner` gives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from graphml.errors import BackendError, StatesLostError, UsageError
from graphml.runtime.blocks.sequence import Sequence, Status
from graphml.runtime.loop.loop_interfaces import Listener, PlanRunner, Prefixes
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.speculation import Speculation
from graphml.runtime.loop.step_budget import StepBudget
from graphml.runtime.loop.timeline import Timeline
from graphml.runtime.loop.token_delivery import LoopMember, TokenDelivery
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import BegunPlan, Computed, PlanUnderWay
from graphml.runtime.steps.run_ahead import RunAhead

T = TypeVar("T")


class BetweenSteps:
    """Calls that wait for the engine's thread, in order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()

    def __bool__(self) -> bool:
        """Whether any waits."""
        return not self._calls.empty()

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """Have a call made; any thread."""
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def run(self) -> None:
        """Make all calls that wait; the engine's thread, where no step is computed."""
        while not self._calls.empty():
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)

    def fail(self, error: Exception) -> None:
        """No call is made any more."""
        while not self._calls.empty():
            self._calls.get()[1].set_exception(error)


LOG = logging.getLogger(__name__)
RECENT_STEPS = 256
"""Steps whose rows and times are kept for `Engine.stats`."""


class StepLoop:
    """Runs sequences to their ends, on a thread that begins with the first and ends with `close`.

    clock: seconds, monotonic. lock: of the scheduler, not held while a step is computed. timeline:
    where steps are recorded, or None. n_plans: of different sequences, that are under way at a time in a
    model's stages.
    """

    def __init__(
        self,
        runner: PlanRunner,
        scheduler: Scheduler,
        budget: StepBudget,
        clock: Callable[[], float] = time.monotonic,
        speculation: Speculation | None = None,
        n_plans: int = 1,
    ) -> None:
        self.scheduler, self._budget, self._clock = scheduler, budget, clock
        self.n_plans, self._under_way = n_plans, deque[PlanUnderWay]()
        self._delivery = TokenDelivery(scheduler)
        self._runner: PlanRunner | None = runner
        self.prefixes: Prefixes | None = None
        self.lock = threading.Lock()
        self._woken: SimpleQueue[None] = SimpleQueue()  # may be put to by a finalizer, within any lock
        self._closing = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.n_steps = 0
        self.n_served = 0  # sequences of each step, added up
        self.recent: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS)  # rows, seconds
        self.timeline: Timeline | None = None
        self.speculation = speculation or Speculation()
        self._between = BetweenSteps()
        self.wake_readers: Callable[[], None] = lambda: None
        """Called when listeners have been told of a step, and the next one is planned or none follows."""
        self._ahead = RunAhead(runner)

    def add(self, members: Iterable[tuple[Sequence, Listener]]) -> None:
        """Sequences of one request wait from now on, all of them or, with an error, none; from any thread."""
        loop_members = [LoopMember(*member) for member in members]
        with self.lock:
            self._check_open()
            self._delivery.add(loop_members)
            if self._delivery:
                self._begin()
        self._woken.put(None)

    def between_steps(self, call: Callable[[], T]) -> T:
        """The result of a call that the engine's thread makes between two steps, within the lock."""
        with self.lock:
            self._check_open()
            self._begin()
            future = self._between.ask(call)
        self._woken.put(None)
        return future.result()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise BackendError(f"engine: it ended with {self._failure!r}") from self._failure
        if self._closing:
            raise UsageError("engine: it was closed")

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="graphml-engine", daemon=True)
            self._thread.start()

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """End sequences before the next step; from any thread. Those that have ended stay as they are."""
        with self.lock:
            self._delivery.cancel(sequences)
        self._woken.put(None)

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread; None while it lives."""
        return self._failure

    def ask_to_close(self) -> None:
        """End all sequences and the thread, soon; takes no lock and waits for nobody."""
        self._closing = True
        self._woken.put(None)

    def close(self) -> None:
        """End all sequences, the thread, and what the runner holds; a second call does nothing."""
        self.ask_to_close()
        with self.lock:
            thread = self._thread
            if thread is None:
                self._let_go(keep=False)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        try:
            while (plan := self._next_plan()) is not None:
                if plan.all_rows:
                    self._step(plan)
        except BaseException as error:
            self._failure = failure = error
            self._end_all(lambda member: member.listener.failed(failure))
            raise
        else:
            self._end_all(lambda member: member.listener.ended("cancel"))
        finally:
            self.wake_readers()  # before a store is written, which takes time and may fail
            self._let_go(keep=self._failure is None)

    def _let_go(self, keep: bool) -> None:
        if self.prefixes is not None:
            self.prefixes.close(keep)
        self._runner = self.prefixes = None
        self._ahead.close()

    def wake(self) -> None:
        """Have the thread plan again if it waits; from any thread."""
        self._woken.put(None)

    def _next_plan(self) -> StepPlan | None:
        """The next step, waited for; None where the engine is closed."""
        while True:
            self._finish_due()
            failed = self.speculation.propose(self.scheduler.running)  # which changes in this thread alone
            with self.lock:
                for sequence, error in failed.items():
                    self._delivery.fail(sequence, error)
                while not self._woken.empty():
                    self._woken.get()
                self._delivery.drop_cancelled()
                if self._closing:
                    if not self._under_way:
                        return None
                    continue
                self._delivery.drop_expired(self._clock())
                if not self._under_way:
                    self._between.run()
                n_decoding = sum(running.n_behind <= 1 for running in self.scheduler.running)
                if self.prefixes is not None:
                    self.prefixes.load()
                budget = self._budget.rows(n_decoding, self.scheduler.n_prompts, self.n_plans)
                plans = [submitted.plan for submitted in self._under_way]
                plan = self.scheduler.schedule(budget, plans, self.n_plans)
                if self.prefixes is not None:
                    self.prefixes.save()
                if self.timeline is not None and plan is not None:
                    self.timeline.planned(plan, budget, self._clock())
            self.wake_readers()
            if plan is not None:
                return plan
            if self._under_way:
                self._finish_first()
            else:
                self._woken.get()  # nothing runs or waits

    def _step(self, plan: StepPlan) -> None:
        assert self._runner is not None
        try:
            if self.n_plans > 1:
                self._submit(plan)
                return
            begun = self._ahead.submit(plan)
            if begun is None:
                self._hand_out(plan, self._runner.run(plan))
            while begun is not None:
                plan = begun.plan
                begun = self._finish(begun)
        except Exception as error:
            self._failed(plan, error)

    def _submit(self, plan: StepPlan) -> None:
        """Have a plan be under way; one that is done already waits for no later one."""
        assert self._runner is not None
        submitted = self._runner.begin(plan)
        self._under_way.append(submitted)
        with self.lock:
            self.scheduler.submitted(plan)
        while submitted.is_done and self._under_way:
            self._finish_first()

    def _finish_due(self) -> None:
        """Finish what must be before a step is planned: calls wait until no step is computed."""
        while self._under_way and (
            len(self._under_way) >= self.n_plans or self._closing or bool(self._between)
        ):
            self._finish_first()

    def _finish_first(self) -> None:
        """Wait for the first plan that is under way, and hand it out."""
        submitted = self._under_way.popleft()
        try:
            self._hand_out(submitted.plan, submitted.computed())
        except Exception as error:
            self._failed(submitted.plan, error, was_submitted=True)

    def _failed(self, plan: StepPlan, error: Exception, was_submitted: bool = False) -> None:
        """A step has failed, and its sequences with it, unless a device has ended, which is started anew.

        What that held is computed again, as is what other plans may have read of a submitted one.
        """
        failing, is_lost = plan.all_rows, isinstance(error, StatesLostError)
        if is_lost:
            assert self._runner is not None
            LOG.warning("%s; its sequences are computed again", error)
            try:
                self._runner.restart()
                failing = ()
            except BackendError as ended:
                error = ended
        is_spoilt = is_lost or was_submitted  # what other plans read
        while self._under_way and not is_spoilt:
            self._finish_first()  # steps end in order
        with self.lock:
            while self._under_way:
                self._under_way.popleft().dropped()
            if self.timeline is not None:
                self.timeline.failed(self._clock())
            concerned = {*self.scheduler.running, *(rows.sequence for rows in plan.all_rows)}
            for rows in failing:
                self._delivery.fail(rows.sequence, error)
            if is_spoilt:
                if self.prefixes is not None and not is_lost:
                    for sequence in concerned:
                        self.prefixes.forget(np.array(sequence.ids, np.int32), sequence.request.extra)
                self.scheduler.states_lost()

    def _finish(self, begun: BegunPlan) -> BegunPlan | None:
        """Finish a submitted step, before that submit the one after it, which is returned.

        It counts for the sequences that really go on so; others compute their cell once more.
        """
        plan = begun.plan
        with self.lock:
            self._delivery.drop_cancelled()
            self._delivery.drop_expired(self._clock())
            rows = [span for i, span in enumerate(plan.rows) if self._counts(plan, i)]
            whole = len(rows) == len(plan.rows) and not self._closing and not self._between
            following = self.scheduler.follow(plan) if whole else None
            if self.prefixes is not None:
                self.prefixes.save()
        after = self._ahead.submit(following, begun) if following is not None else None
        if after is not None:
            with self.lock:
                if self.timeline is not None:
                    self.timeline.planned(after.plan, after.plan.n_rows, self._clock())
        self.wake_readers()
        of = {
            row: sequence
            for row, sequence in plan.sampled.items()
            if any(sequence is kept.sequence for kept in rows)
        }
        self._hand_out(StepPlan(tuple(rows)), self._ahead.read(begun, of))
        return after

    def _counts(self, plan: StepPlan, row: int) -> bool:
        """Whether a submitted row is what its sequence computes next."""
        start, sequence = plan.rows[row].start, plan.rows[row].sequence
        runs = sequence.status is Status.RUNNING and sequence.n_computed == start
        return runs and self._ahead.counts(plan, row, sequence.ids)

    def _hand_out(self, plan: StepPlan, computed: Computed) -> None:
        """A plan was computed: its tokens go to those who wait for them."""
        if plan.options is None:  # others have functions of their own, and say nothing of these
            self._budget.measured(plan.n_ids, computed.seconds)
        with self.lock:
            self.n_steps += 1
            self.n_served += len({rows.sequence for rows in plan.all_rows})
            self.recent.append((sum(rows.count for rows in plan.all_rows), computed.seconds))
            self.speculation.counted(plan, computed)
            self._delivery.deliver(plan, computed)
            if self.timeline is not None:
                self.timeline.ended(plan, computed.seconds, self._clock())

    def _end_all(self, tell: Callable[[LoopMember], None]) -> None:
        with self.lock:
            self._closing = True
            self._between.fail(BackendError("engine: it has ended"))
            self._delivery.end_all(tell)
