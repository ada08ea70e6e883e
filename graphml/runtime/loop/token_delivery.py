"""Tokens of an engine's steps go to those who wait for them; sequences that end or fail are let go.

Knows sequences, listeners and what a step has computed; nothing of threads, or of how steps are planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from graphml.runtime.blocks.sequence import Sequence, Status
from graphml.runtime.loop.loop_interfaces import Listener
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.speculation import accept, give_back
from graphml.runtime.plans.prompt_scores import is_scored
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import Computed
from graphml.runtime.steps.guidance import WaitingRow, leader_of
from graphml.sampling.denoiser import Denoiser


@dataclass(eq=False)
class LoopMember:
    """A sequence in an engine's loop and who gets its tokens: what a token does to both."""

    sequence: Sequence
    listener: Listener

    def take(self, token: int | Exception, n_ctx: int) -> str | None:
        """A sampled token follows, and behind it what its structure forces; why that ends it, or None.

        Raises what a sampler or the listener raised.
        """
        if isinstance(token, Exception):
            raise token
        if self.sequence.request.max_tokens == 0:  # its prompt alone is wanted, which is scored by now
            return "length"
        reason, sequence = self._append(token, n_ctx), self.sequence
        # Behind the first ids of a draft come the others, among which forced ones are.
        while reason is None and not sequence.draft and (forced_ids := sequence.forced(n_ctx)):
            for forced in forced_ids:
                reason = reason or self._append(forced, n_ctx)
        return reason

    def _append(self, token: int, n_ctx: int) -> str | None:
        sequence, request = self.sequence, self.sequence.request
        reason = self.listener.sampled(token)
        if reason is not None:
            return reason
        sequence.ids.append(token)
        n_held = len(sequence.ids)
        if sequence.guidance is not None:
            sequence.guidance.append(token)
            n_held = max(n_held, len(sequence.guidance.negative.ids))
        if request.max_tokens is not None and sequence.n_generated >= request.max_tokens:
            reason = "length"
        elif n_held >= n_ctx:
            reason = request.full.when_full(n_ctx)
        return self.listener.appended(token, reason is not None) or reason

    def tell_progress(self, n_computed: int) -> None:
        """Ids of the prompt were computed, up to so many."""
        with contextlib.suppress(Exception):  # of the listener alone
            self.listener.prompt_computed(min(n_computed, self.sequence.request.n_prompt))


class TokenDelivery:
    """The members of an engine's loop, whose sequences a scheduler has. Called with the loop's lock held."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._members: dict[Sequence, LoopMember] = {}
        self._cancelled: list[Sequence] = []

    def __bool__(self) -> bool:
        return bool(self._members)

    def add(self, members: list[LoopMember]) -> None:
        """Sequences of one request wait from now on, all of them or, with an error, none."""
        for member in members:
            self._scheduler.check(member.sequence)
            if member.sequence.guidance is not None:
                self._scheduler.check(member.sequence.guidance.negative)
        for member in members:
            computes = is_scored(member.sequence) or member.sequence.captured is not None
            if member.sequence.request.max_tokens == 0 and not computes:
                member.listener.ended("length")
                continue
            self._scheduler.add(member.sequence)
            if member.sequence.guidance is not None:
                self._scheduler.add(member.sequence.guidance.negative)
            self._members[member.sequence] = member

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """End sequences by `drop_cancelled`; those that have ended stay as they are."""
        self._cancelled += [sequence for sequence in sequences if sequence in self._members]

    def drop_cancelled(self) -> None:
        """End those that nobody wants any more."""
        cancelled, self._cancelled = self._cancelled, []
        for sequence in cancelled:
            member = self._members.get(sequence)
            if member is not None:
                self._end(member, "cancel")

    def drop_expired(self, now: float) -> None:
        """End those whose deadline has passed."""
        for sequence in self._scheduler.expired(now):
            member = self._members.get(sequence)
            if member is not None:
                self._end(member, "deadline")

    def deliver(self, plan: StepPlan, computed: Computed) -> None:
        """A plan was computed: its tokens go to those who wait for them.

        Where one could not be sampled without its whole row, its sequence stays as it is.
        """
        tokens = dict(zip(plan.sampled.values(), computed.tokens, strict=True))
        done = [rows for rows in plan.rows if tokens.get(rows.sequence, 0) is not None]
        self._scheduler.computed(StepPlan(tuple(done), sources=plan.sources))
        for rows in plan.drafted.values():
            rows.sequence.was_drafted = bool(computed.further.get(rows.sequence))
            if not rows.sequence.was_drafted:
                rows.sequence.draft = []  # none of it is right
        for rows in done:
            member = self._members.get(rows.sequence)
            of_prompt = rows.first_new < rows.sequence.request.n_prompt
            if member is not None and of_prompt and (rows.count - rows.n_again > 1 or not rows.n_outputs):
                member.tell_progress(rows.start + rows.count - rows.n_drafted)
        for sequence, token in tokens.items():
            member = self._members.get(leader_of(sequence))  # None where one of its request has failed
            if member is not None and token is not None and token is not WaitingRow.WAITS:
                self._continue(member, token)
        for sequence, error in computed.failed.items():
            self.fail(sequence, error)
        self._deliver_drafted(plan, computed)
        for sequence, of_text in computed.pooled.items():
            member = self._members.get(sequence)
            if member is None:
                continue  # it has failed, or nobody wants it any more
            if sequence.denoiser is None:
                sequence.pooled = of_text
                self._end(member, "end")
            else:
                self._settle(member, sequence.denoiser)

    def _settle(self, member: LoopMember, denoiser: Denoiser) -> None:
        """Hand out what a step has settled of an answer; unless that ends it, it waits again."""
        sequence = member.sequence
        with contextlib.suppress(Exception):  # of the listener alone
            member.listener.denoised()
        for token in denoiser.answer[sequence.n_generated : denoiser.n_settled].tolist():
            self._continue(member, token)
            if sequence.status is not Status.RUNNING:
                return
        self._scheduler.wait_again(sequence)

    def _deliver_drafted(self, plan: StepPlan, computed: Computed) -> None:
        """The tokens behind the first, of sequences with drafts; what was wrong of those is given back."""
        pool = self._scheduler.pool
        for rows in plan.drafted.values():
            sequence = rows.sequence
            further = computed.further.get(sequence, ())
            for i, token in enumerate(further, 1):
                member = self._members.get(sequence)
                if member is None:
                    break  # it has ended
                if i == len(further):
                    sequence.draft = []
                accept(sequence, pool)
                sequence.was_drafted = i < len(further)  # the last is behind what was right of the draft
                self._continue(member, token)
            if sequence.status is Status.RUNNING:
                give_back(sequence, pool, was_right=len(further) == rows.n_drafted)

    def _continue(self, member: LoopMember, token: int | Exception) -> None:
        """Hand out what follows a sequence that has caught up, and end it where that ends it."""
        try:
            reason = member.take(token, self._scheduler.n_ctx)
        except Exception as error:  # of a sampler or a listener: this request's own
            self.fail(member.sequence, error)
            return
        if reason is not None:
            self._end(member, reason)

    def _end(self, member: LoopMember, reason: str) -> None:
        self._remove(member.sequence)
        self._members.pop(member.sequence, None)
        try:
            member.listener.ended(reason)
        except Exception as error:  # of its own
            with contextlib.suppress(Exception):
                member.listener.failed(error)

    def fail(self, sequence: Sequence, error: BaseException) -> None:
        """All sequences of a request end with an error, which is told once they hold nothing."""
        request = leader_of(sequence).request
        all_of_it = [member for member in self._members.values() if member.sequence.request is request]
        for member in all_of_it:
            self._remove(member.sequence)
            del self._members[member.sequence]
        for member in all_of_it:
            with contextlib.suppress(Exception):
                member.listener.failed(error)

    def _remove(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        if sequence.guidance is not None:
            self._scheduler.remove(sequence.guidance.negative)

    def end_all(self, tell: Callable[[LoopMember], None]) -> None:
        """All sequences end; `tell` is called with each member."""
        members, self._members = list(self._members.values()), {}
        for member in members:
            with contextlib.suppress(Exception):
                self._remove(member.sequence)
            with contextlib.suppress(Exception):
                tell(member)
