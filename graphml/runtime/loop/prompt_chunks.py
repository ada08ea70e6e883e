"""How many ids a sequence computes in a step, and the rows for them: the one behind, or a prompt's chunk.

Knows sequences and counts; nothing of who runs, or of blocks that there are too few of.
"""

from __future__ import annotations

from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.sequence_queues import SequenceQueues
from graphml.runtime.loop.siblings import is_awaited
from graphml.runtime.plans.prompt_scores import MOST_ROWS, is_scored, n_scored
from graphml.runtime.plans.step_plan import Move, Rows


class PromptChunks:
    """prompt_cap: most ids of one prompt in a step while another sequence runs; max_chunk: in any step.

    scored_left: rows of prompts that give logits, as many as the step has room for.
    """

    def __init__(self, queues: SequenceQueues, prompt_cap: int, max_chunk: int | None = None) -> None:
        self._queues, self._prompt_cap, self._max_chunk = queues, prompt_cap, max_chunk
        self.scored_left = MOST_ROWS

    def begin_step(self) -> None:
        """Another step has room for scored rows."""
        self.scored_left = MOST_ROWS

    def count(self, sequence: Sequence, budget: int, alone: bool) -> int:
        """How many ids it computes in a step with room for so many."""
        if sequence.n_behind <= 1:
            return sequence.n_behind
        cap = budget if alone else min(budget, self._prompt_cap)
        cap = cap if self._max_chunk is None else min(cap, self._max_chunk)
        count = max(0, min(sequence.n_behind, cap))
        if is_scored(sequence):
            count = min(count, self.scored_left)
            self.scored_left -= count
        queues = self._queues
        if queues.checkpoints is not None:
            count = queues.checkpoints.cut(sequence, count)
        # Its siblings fork from it before the prompt's last id, which each of them computes for itself.
        return count - (count == sequence.n_behind and is_awaited(sequence, queues.waiting, queues.pool))

    def rows(
        self,
        sequence: Sequence,
        count: int,
        restore: int | None = None,
        moves: tuple[Move, ...] = (),
        states_of: int | None = None,
    ) -> Rows:
        """The next `count` ids of a sequence as rows of a step; see `Rows`."""
        start, scored = sequence.n_computed, n_scored(sequence, sequence.n_computed, count)
        n_outputs = scored + (count == sequence.n_behind)
        checkpoints = self._queues.checkpoints
        keep = None if checkpoints is None else checkpoints.plan(sequence, start + count)
        return Rows(sequence, start, count, n_outputs, scored, restore, keep, moves, states_of)
