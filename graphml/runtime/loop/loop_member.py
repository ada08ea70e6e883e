"""A sequence in an engine's loop and who gets its tokens: what a token does to both.

Knows one sequence and its listener; nothing of steps, or of other sequences.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.loop_interfaces import Listener


@dataclass(eq=False)
class LoopMember:
    """See above."""

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

    def tell_progress(self) -> None:
        """Ids of the prompt were computed."""
        with contextlib.suppress(Exception):  # of the listener alone
            self.listener.prompt_computed(min(self.sequence.n_computed, self.sequence.request.n_prompt))
