"""Tokens of an engine's steps go to those who wait for them; sequences that end or fail are let go.

Knows sequences, listeners and what a step has computed; nothing of threads, or of how steps are planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from graphml.runtime.blocks.sequence import Sequence, Status
from graphml.runtime.loop.loop_member import LoopMember
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.prompt_scores import is_scored
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import Computed
from graphml.runtime.steps.draft_rows import accept, give_back
from graphml.runtime.steps.guidance import Waits, leader_of


class TokenDelivery:
    """The members of an engine's loop, whose sequences a scheduler has. Called with the loop's lock held."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._members: dict[Sequence, LoopMember] = {}
        self._cancelled: list[Sequence] = []

    def __bool__(self) -> bool:
        return bool(self._members)

    def add(self, made: list[LoopMember]) -> None:
        """Sequences of one request wait from now on, all of them or, with an error, none."""
        for one in made:
            self._scheduler.check(one.sequence)
            if one.sequence.guidance is not None:
                self._scheduler.check(one.sequence.guidance.negative)
        for one in made:
            if one.sequence.request.max_tokens == 0 and not is_scored(one.sequence):
                one.listener.ended("length")
                continue
            self._scheduler.add(one.sequence)
            if one.sequence.guidance is not None:
                self._scheduler.add(one.sequence.guidance.negative)
            self._members[one.sequence] = one

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """End sequences by `drop_cancelled`; those that have ended stay as they are."""
        self._cancelled += [one for one in sequences if one in self._members]

    def drop_cancelled(self) -> None:
        """End those that nobody wants any more."""
        cancelled, self._cancelled = self._cancelled, []
        for sequence in cancelled:
            one = self._members.get(sequence)
            if one is not None:
                self._end(one, "cancel")

    def drop_expired(self, now: float) -> None:
        """End those whose deadline has passed."""
        for sequence in self._scheduler.expired(now):
            one = self._members.get(sequence)
            if one is not None:
                self._end(one, "deadline")

    def deliver(self, plan: StepPlan, computed: Computed) -> bool:
        """A plan was computed: its tokens go to those who wait for them.

        False where a token could not be sampled without its whole row: its sequence stays as it is.
        """
        tokens = dict(zip(plan.sampled.values(), computed.tokens, strict=True))
        done = [one for one in plan.rows if tokens.get(one.sequence, 0) is not None]
        self._scheduler.computed(StepPlan(tuple(done), sources=plan.sources))
        for rows in plan.drafted.values():
            rows.sequence.was_drafted = bool(computed.further.get(rows.sequence))
            if not rows.sequence.was_drafted:
                rows.sequence.draft = []  # none of it is right
        for rows in done:
            one = self._members.get(rows.sequence)
            of_prompt = rows.first_new < rows.sequence.request.n_prompt
            if one is not None and of_prompt and (rows.count - rows.n_again > 1 or not rows.n_outputs):
                one.tell_progress()
        for sequence, token in tokens.items():
            one = self._members.get(leader_of(sequence))  # None where one of its request has failed
            if one is not None and token is not None and token is not Waits.WAITS:
                self._continue(one, token)
        for sequence, error in computed.failed.items():
            self.fail(sequence, error)
        self._deliver_drafted(plan, computed)
        for sequence, of_text in computed.pooled.items():
            sequence.pooled = of_text
            one = self._members.get(sequence)
            if one is not None:
                self._end(one, "end")
        return len(done) == len(plan.rows)

    def _deliver_drafted(self, plan: StepPlan, computed: Computed) -> None:
        """The tokens behind the first, of sequences with drafts; what was wrong of those is given back."""
        pool = self._scheduler.pool
        for rows in plan.drafted.values():
            sequence = rows.sequence
            further = computed.further.get(sequence, ())
            for i, token in enumerate(further, 1):
                one = self._members.get(sequence)
                if one is None:
                    break  # it has ended
                if i == len(further):
                    sequence.draft = []
                accept(sequence, pool)
                sequence.was_drafted = i < len(further)  # the last is behind what was right of the draft
                self._continue(one, token)
            if sequence.status is Status.RUNNING:
                give_back(sequence, pool, was_right=len(further) == rows.n_drafted)

    def _continue(self, one: LoopMember, token: int | Exception) -> None:
        """Hand out what follows a sequence that has caught up, and end it where that ends it."""
        try:
            reason = one.take(token, self._scheduler.n_ctx)
        except Exception as error:  # of a sampler or a listener: this request's own
            self.fail(one.sequence, error)
            return
        if reason is not None:
            self._end(one, reason)

    def _end(self, one: LoopMember, reason: str) -> None:
        self._remove(one.sequence)
        self._members.pop(one.sequence, None)
        try:
            one.listener.ended(reason)
        except Exception as error:  # of its own
            with contextlib.suppress(Exception):
                one.listener.failed(error)

    def fail(self, sequence: Sequence, error: BaseException) -> None:
        """All sequences of a request end with an error, which is told once they hold nothing."""
        request = leader_of(sequence).request
        all_of_it = [one for one in self._members.values() if one.sequence.request is request]
        for one in all_of_it:
            self._remove(one.sequence)
            del self._members[one.sequence]
        for one in all_of_it:
            with contextlib.suppress(Exception):
                one.listener.failed(error)

    def _remove(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        if sequence.guidance is not None:
            self._scheduler.remove(sequence.guidance.negative)

    def end_all(self, tell: Callable[[LoopMember], None]) -> None:
        """All sequences end; `tell` is called with each member."""
        members, self._members = list(self._members.values()), {}
        for one in members:
            with contextlib.suppress(Exception):
                self._remove(one.sequence)
            with contextlib.suppress(Exception):
                tell(one)
