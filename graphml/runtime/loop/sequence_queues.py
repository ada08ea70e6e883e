"""Which sequences wait and which run, in what order, and what those that run hold: slot, blocks, states.

They are served by priority, then fairly between keys, then first come. What each key was served is counted in
rows for its weight (virtual token counters, Sheng et al. 2024, arXiv:2401.00588); a key that comes new begins
with the least of the others, so that it catches up on nothing. Knows sequences, blocks and counts; nothing of
the rows of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence, Status
from graphml.runtime.blocks.source_blocks import SourceBlocks
from graphml.runtime.loop.siblings import computes_for
from graphml.runtime.plans.checkpoints import Checkpoints


class FairOrder:
    """What the keys of waiting and running sequences were served."""

    def __init__(self) -> None:
        self._served: dict[str | None, float] = {}

    def __len__(self) -> int:
        return len(self._served)

    def came(self, key: str | None) -> None:
        """A sequence of a key waits."""
        if key not in self._served:
            self._served[key] = min(self._served.values(), default=0.0)

    def serve(self, request: Request, n_rows: int) -> None:
        """A request has so many rows in a step."""
        self._served[request.key] += n_rows / request.weight

    def left(self, key: str | None, others: Iterable[Sequence]) -> None:
        """A sequence of a key has ended, beside others."""
        if all(other.request.key != key for other in others):
            del self._served[key]

    def sort(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """By priority, then those that wait for a token, then whose key was served least, then first come."""

        def rank(sequence: Sequence) -> tuple[int, bool, float, int]:
            request = sequence.request
            return -request.priority, sequence.n_behind > 1, self._served[request.key], sequence.order

        return sorted(sequences, key=rank)


class SequenceQueues:
    """waiting, running: in the order in which they came to wait or run. slots: those that nobody has.

    max_texts: of a step. recurrent: sequences have states besides cells, in their slots, so that a text takes
    a slot, too; else it runs within its step alone. order: who is served first. checkpoints: None, or of a
    recurrent model whose prefixes are found.
    """

    def __init__(
        self, pool: BlockPool, max_sequences: int, checkpoints: Checkpoints | None, recurrent: bool
    ) -> None:
        self.pool, self.checkpoints, self.recurrent = pool, checkpoints, recurrent
        self.sources = SourceBlocks(pool.n_blocks, pool.block_size, pool.keeps)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        most = min([max_sequences, *(window.n_sequences for window in pool.windows)])
        self.slots, self.max_texts = list(range(most))[::-1], most
        self.order = FairOrder()

    def add(self, sequence: Sequence) -> None:
        """A sequence waits from now on."""
        self.order.came(sequence.request.key)
        self.waiting.append(sequence)
        for running in self.running:
            self.want(running, sequence)

    def takes_slot(self, sequence: Sequence) -> bool:
        """Whether it runs in a slot of its own."""
        return self.recurrent or not sequence.request.pooling

    def begin(self, sequence: Sequence, text: int = 0) -> None:
        """A waiting sequence runs from now on. text: which text of the next step it is, if it is one."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.slot = self.slots.pop() if self.takes_slot(sequence) else text
        sequence.status = Status.RUNNING

    def preempt(self, sequence: Sequence, n_ctx: int) -> None:
        """A running sequence waits again and holds nothing."""
        self._stop(sequence)
        if len(sequence.ids) >= n_ctx:
            sequence.forget(*sequence.to_forget(n_ctx))
        sequence.status = Status.PREEMPTED
        sequence.n_preempted += 1
        self.waiting.append(sequence)

    def wait_again(self, sequence: Sequence) -> None:
        """An answer that was denoised by a step waits for the next one, and holds nothing."""
        self._stop(sequence)
        sequence.status = Status.WAITING
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended, or nobody wants it any more; a second call does nothing."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        self.order.left(sequence.request.key, (*self.waiting, *self.running))

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.give_back(self.pool)
        self.sources.give_back(sequence)
        if self.checkpoints is not None:
            self.checkpoints.stopped(sequence)
        if self.takes_slot(sequence):
            self.slots.append(sequence.slot)
        sequence.slot = -1

    def want(self, running: Sequence, sequence: Sequence) -> None:
        """A checkpoint where a waiting sequence will find what a running one computes for it."""
        size = self.pool.block_size
        if self.checkpoints is not None and (end := computes_for(running, sequence, size)):
            self.checkpoints.want(running, end)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed."""
        everybody = (*self.running, *self.waiting)
        return [sequence for sequence in everybody if (sequence.request.deadline or math.inf) <= now]
