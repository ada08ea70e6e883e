"""How many rows a step may have: as many as take the time that everybody may wait for a token.

The duration of a step is the time between two tokens for all sequences in it. Where many prompts wait beside
them, it may be longer, up to twice: rows of generated tokens are computed in each step, so the fewer steps
there are, the sooner the last prompt is computed. Of a sequence a step computes the id behind, or a chunk
of its prompt. Knows sequences, counts and seconds; nothing of who runs, or of a lack of blocks.
"""

from __future__ import annotations

from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.sequence_queues import SequenceQueues
from graphml.runtime.loop.siblings import is_awaited
from graphml.runtime.plans.prompt_scores import MOST_ROWS, is_scored, n_findable, n_scored
from graphml.runtime.plans.step_plan import Move, Rows

FEWEST = 16
"""Rows that prompts get in a step, however slow it is and however many sequences generate."""
_MOST_STRETCH = 2.0
"""How much longer than its target a step is at most."""
_CROWD = 4
"""Where one of so many sequences, or more of them, is at its prompt, steps are stretched most."""
_SHARE = 0.2  # of the latest step in the average


class StepBudget:
    """Rows of a step that takes `target_s` at the measured speed; `most` while nobody waits for a token."""

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s, self._most = target_s, most
        self._row_s: float | None = None

    def rows(self, n_decoding: int, n_prompts: int = 0, n_plans: int = 1) -> int:
        """Rows of the next step, where so many sequences wait for a token and so many are at prompts.

        n_plans: steps that are under way at a time, which share what one would have.
        """
        rows = self._rows(n_decoding, n_prompts)
        return max(min(FEWEST, rows), rows // n_plans)

    def _rows(self, n_decoding: int, n_prompts: int) -> int:
        if not n_decoding:
            return self._most
        crowd = min(1.0, _CROWD * n_prompts / (n_decoding + n_prompts))
        target_s = self._target_s * (1.0 + (_MOST_STRETCH - 1.0) * crowd)
        rows = 4.0 * FEWEST if self._row_s is None else target_s / self._row_s
        return int(min(self._most, max(n_decoding + FEWEST, rows)))

    def measured(self, n_rows: int, seconds: float) -> None:
        """A step of so many rows took so long. Short steps do not count: a row costs less in long ones."""
        if n_rows >= min(FEWEST, self._most):
            row_s = max(seconds, 1e-6) / n_rows
            self._row_s = row_s if self._row_s is None else self._row_s + _SHARE * (row_s - self._row_s)


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
            before = max(0, n_findable(sequence) - sequence.n_computed)  # rows without logits
            count = min(count, before + self.scored_left)
            self.scored_left -= max(0, count - before)
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
