"""A timeline of an engine's steps: rows of each sequence, who waited and why, hits, evictions.

Plain values, written by the engine's thread while somebody records. Knows plans and the scheduler's state;
nothing of models, text or files.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.step_plan import Rows, StepPlan

LIMIT = 100_000
"""Steps that a timeline keeps: the latest ones."""


@dataclass(frozen=True)
class SequenceRows:
    """One sequence in a step: `count` of its ids from position `start` on are computed.

    sequence: its number in the engine, in the order in which they came. generates: the row is its latest
    token, else they are of its prompt (or, after a preemption, of what it had). samples: its next token
    follows. drafted: rows behind it that are a draft. found: in its first step since it waited, ids that
    blocks held already; those before `start`.
    """

    sequence: int
    start: int
    count: int
    generates: bool
    samples: bool
    found: int = 0
    drafted: int = 0


@dataclass(frozen=True)
class WaitingSequence:
    """A sequence without rows in a step, and why.

    reason: "rows": the step had no room for them; "slot": as many run as may; "blocks": too few are free;
    "store": its blocks are read from disk; "prefix": another one computes the beginning of its prompt;
    "source": its source text; "preemption": a running one has just lost its blocks; "turn": it is behind one
    that waits for these, or the step is of requests with other compile options.
    """

    sequence: int
    reason: str


@dataclass(frozen=True)
class TimelineStep:
    """One step. Times are seconds of the engine's monotonic clock.

    number: among those recorded, from 0. begin_s: when it was planned, or when the step before it ended if
    that was later: a device may be given a step while it computes another. end_s: when its tokens were given
    out. compute_s: seconds in which it was computed and sampled, 0.0 where it failed. budget: rows that
    prompts and tokens had together. preempted: sequences that gave their blocks back for it. evicted: free
    blocks with content that were taken for it. blocks_used, blocks_free: held by somebody; by nobody.
    """

    number: int
    begin_s: float
    end_s: float
    compute_s: float
    budget: int
    rows: tuple[SequenceRows, ...]
    waiting: tuple[WaitingSequence, ...]
    preempted: tuple[int, ...]
    evicted: int
    blocks_used: int
    blocks_free: int
    failed: bool = False

    @property
    def n_rows(self) -> int:
        """Ids computed."""
        return sum(rows.count for rows in self.rows)

    @property
    def n_generating(self) -> int:
        """Rows that are a sequence's latest token, or a draft behind it."""
        return sum(rows.count for rows in self.rows if rows.generates)


class Timeline:
    """The latest steps of an engine, at most `limit`; read from any thread, written by the engine's.

    scheduler: the engine's, in the state from which steps are recorded on. lock: the scheduler's, held by who
    writes; a step is there for everybody who has seen its tokens.
    """

    def __init__(self, scheduler: Scheduler, lock: Lock, limit: int = LIMIT) -> None:
        self._steps: deque[TimelineStep] = deque(maxlen=limit)
        self._scheduler, self._lock = scheduler, lock
        self._begun: deque[TimelineStep] = (
            deque()
        )  # a device may have one more than the step that it computes
        self._number, self._last_end = 0, 0.0
        self._remember()

    @property
    def steps(self) -> list[TimelineStep]:
        """The steps so far that have ended, in order."""
        with self._lock:
            return list(self._steps)

    def planned(self, plan: StepPlan, budget: int, now: float) -> None:
        """A step begins: what the scheduler has just decided."""
        pool = self._scheduler.pool
        evicted = pool.n_evicted - self._n_evicted
        step = TimelineStep(
            self._number, now, now, 0.0, budget, tuple(map(self._rows, plan.all_rows)), self._waiting(plan),
            tuple(sequence.order for sequence in plan.preempted), evicted, pool.n_used, pool.n_free,
        )  # fmt: skip
        self._begun.append(step)
        self._number += 1
        self._remember()
        if not plan.all_rows:  # nothing is computed
            self._end(now)

    def ended(self, plan: StepPlan, seconds: float, now: float) -> None:
        """A plan, or what counts of it, was computed in so long; its tokens are out. Steps end in order."""
        rows = {(span.sequence.order, span.start) for span in plan.all_rows}
        if self._begun and rows <= {(span.sequence, span.start) for span in self._begun[0].rows}:
            self._end(now, compute_s=seconds)  # else it was planned before recording began

    def failed(self, now: float) -> None:
        """The steps that have not ended have failed."""
        while self._begun:
            self._end(now, failed=True)

    def _end(self, now: float, **how: Any) -> None:
        step = self._begun.popleft()
        begin = max(step.begin_s, self._last_end)
        self._steps.append(replace(step, begin_s=begin, end_s=now, **how))
        self._last_end = now

    def _remember(self) -> None:
        """Who runs and how much was evicted before the next step is planned."""
        self._ran = {sequence.order for sequence in self._scheduler.running}
        self._n_evicted = self._scheduler.pool.n_evicted

    def _rows(self, rows: Rows) -> SequenceRows:
        sequence = rows.sequence
        n_new = rows.count - rows.n_again - rows.n_drafted
        generates = n_new == 1 and rows.first_new + sequence.n_dropped >= sequence.request.n_prompt
        n_found = 0 if sequence.order in self._ran else rows.start
        values = sequence.order, rows.start, rows.count, generates, rows.samples, n_found
        return SequenceRows(*values, rows.n_drafted)

    def _waiting(self, plan: StepPlan) -> tuple[WaitingSequence, ...]:
        """Everybody without rows: running ones that were left out, and those that wait."""
        served = {rows.sequence for rows in plan.all_rows}
        why = "preemption" if plan.preempted else "rows"
        kinds = {sequence.company for sequence in served}
        idle = [
            WaitingSequence(sequence.order, why if sequence.company in kinds or not kinds else "turn")
            for sequence in self._scheduler.running
            if sequence not in served
        ]
        return (
            *idle,
            *(
                WaitingSequence(sequence.order, _reason(sequence, plan))
                for sequence in self._scheduler.waiting
            ),
        )


def _reason(sequence: Sequence, plan: StepPlan) -> str:
    if sequence in plan.preempted:
        return "blocks"
    return "preemption" if plan.preempted else sequence.waits_for or "turn"
