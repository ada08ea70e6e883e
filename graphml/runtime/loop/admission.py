"""Which waiting sequences start in a step, what they find of their prefixes, and what the others wait for.

A text of which only rows are wanted is computed whole within one step, since its tokens may see later ones,
and is pooled there; its blocks are free again behind the step. Knows sequences, blocks and counts; nothing of
rows of those that run already, or of what pooling is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Values

from graphml.errors import UsageError
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Company, Sequence
from graphml.runtime.loop.sequence_queues import SequenceQueues
from graphml.runtime.loop.siblings import computes_for, sibling_of, take_over
from graphml.runtime.loop.step_budget import PromptChunks
from graphml.runtime.plans.prompt_scores import is_scored, n_findable
from graphml.runtime.plans.step_plan import Rows
from graphml.runtime.steps.guidance import waits_for_other

WATERMARK = 0.01
"""Share of the pool that stays free when a sequence is admitted, so that it does not soon preempt others."""


class Admission:
    """Starts waiting sequences, in their order."""

    def __init__(self, queues: SequenceQueues, chunks: PromptChunks) -> None:
        self._queues, self._chunks = queues, chunks
        self._pool, self._checkpoints, self._sources = queues.pool, queues.checkpoints, queues.sources
        self.held_back: Callable[[Sequence], bool] = lambda sequence: False
        """Whether a waiting sequence does not run yet, though there is room."""
        self.under_way: Collection[Sequence] = ()
        """Running ones with rows that are submitted and not computed."""

    def admitted(
        self, budget: int, alone: bool, kind: Company, sources: list[Sequence], texts: list[Sequence]
    ) -> Iterator[Rows]:
        """Start waiting sequences while there are rows, slots and blocks; nobody overtakes for want of those.

        But texts that need no slot overtake for want of one. A sequence whose prompt another is just
        computing, half of it at least, waits to find it. kind: who has part in the step; nobody overtakes for
        want of a turn, or others that come would take all slots. sources: gets those whose source text is to
        be read, which takes rows, too; the first has as many as it needs. texts: gets those of which rows are
        wanted.
        """
        for sequence in self._queues.order.sort(self._queues.waiting):
            sequence.waits_for = self._obstacle(sequence, budget, texts)
            if sequence.waits_for in ("store", "prefix", "guidance", "slot"):
                continue
            if not sequence.waits_for and sequence.company != kind:
                sequence.waits_for = "turn"
            if sequence.waits_for:
                return
            if sequence.request.pooling:
                self._queues.begin(sequence, len(texts))
                _take_blocks(sequence, self._pool)
                self._queues.order.serve(sequence.request, sequence.n_text)
                texts.append(sequence)
                budget -= sequence.n_text
                continue
            n_source = self._sources.take(sequence, self._queues.running, budget if sources else None)
            if n_source is None:
                sequence.waits_for = "source"
                return
            if n_source:
                sources.append(sequence)
            sibling = sibling_of(sequence, self._queues.running, self._pool)
            self._queues.begin(sequence)
            restore = self._adopt(sequence)
            is_ahead = sibling in self.under_way
            moves, states_of = take_over(sequence, sibling, self._pool, self._queues.recurrent, is_ahead)
            if states_of is not None:
                restore = None
            if sequence.n_cached < 0:
                sequence.n_cached = sequence.n_computed
            count = self._chunks.count(sequence, budget, alone)
            blocks = self._pool.allocate(sequence.blocks_needed(count, self._pool.block_size))
            assert blocks is not None
            sequence.blocks += blocks
            budget -= count + n_source
            yield self._chunks.rows(sequence, count, restore, moves, states_of)

    def _adopt(self, sequence: Sequence) -> int | None:
        """What was computed of its ids is its own; the copy that its states are restored from, if any."""
        if self._checkpoints is None:
            sequence.adopt_prefix(self._pool, n_findable(sequence))
            return None
        checkpoint = self._checkpoints.adopt(sequence, self._pool)
        for waiting in self._queues.waiting:
            self._queues.want(sequence, waiting)
        return None if checkpoint is None else checkpoint.at

    def _obstacle(self, sequence: Sequence, budget: int, texts: list[Sequence]) -> str:
        """What it waits for: rows, a slot, the store, a prefix, guidance or blocks; "": it can start."""
        if waits_for_other(sequence):
            return "guidance"
        if self._queues.takes_slot(sequence) and not self._queues.slots:
            return "slot"
        if budget <= 0 or (is_scored(sequence) and self._chunks.scored_left <= 0):
            return "rows"
        if sequence.request.pooling:
            if len(texts) == self._queues.max_texts:
                return "rows"
            return _text_obstacle(sequence, texts, budget, self._pool, self._promised())
        if self.held_back(sequence):
            return "store"
        sibling = sibling_of(sequence, self._queues.running, self._pool)
        if sibling is not None and sibling.n_computed < sequence.request.n_prompt - 1:
            return "prefix"
        shares, size = sibling is None and self._pool.keeps, self._pool.block_size
        if shares and any(computes_for(running, sequence, size) for running in self._queues.running):
            return "prefix"
        return "" if self._fits(sequence) else "blocks"

    def _fits(self, sequence: Sequence) -> bool:
        """Whether all its ids fit beside what the running ones still need, and some blocks stay free."""
        most = n_findable(sequence)
        if self._checkpoints is not None:
            checkpoint = self._checkpoints.find(sequence, self._pool)
            most = 0 if checkpoint is None else checkpoint.n
        needed = sequence.blocks_to_start(self._pool, most)
        return needed + self._promised() <= self._pool.n_free

    def _promised(self) -> int:
        """Free blocks that running sequences still need, and some that stay free beside them."""
        needed = sum(
            sequence.blocks_needed(sequence.n_behind, self._pool.block_size)
            for sequence in self._queues.running
        )
        return needed + (math.ceil(WATERMARK * self._pool.n_blocks) if self._queues.running else 0)


def _n_blocks(text: Sequence, pool: BlockPool) -> int:
    return -(-text.n_text // pool.block_size)


def check_text(text: Sequence, pool: BlockPool) -> None:
    """UsageError for a text that no step could compute."""
    most = min([pool.n_blocks, *(window.n_blocks for window in pool.windows)])
    if not 0 < _n_blocks(text, pool) <= most:
        raise UsageError(
            f"text: wanted 1 to {most * pool.block_size} ids, for which the engine has blocks; "
            f"got {text.n_text}"
        )


def _text_obstacle(text: Sequence, texts: Values[Sequence], budget: int, pool: BlockPool, spare: int) -> str:
    """What a text waits for beside those that a step has already: rows or blocks; "": it can be computed.

    The first of a step has as many rows as it needs. spare: free blocks that are others'.
    """
    if texts and (text.n_text > budget or text.request.pooling != texts[0].request.pooling):
        return "rows"
    needed = _n_blocks(text, pool)
    free = min([pool.n_free - spare, *(window.n_free for window in pool.windows)])
    return "" if needed <= free else "blocks"


def _take_blocks(text: Sequence, pool: BlockPool) -> None:
    """Give a text the blocks that all of it needs, which are free."""
    blocks = pool.allocate(_n_blocks(text, pool))
    assert blocks is not None
    text.blocks, text.n_cached = blocks, 0
