"""Speculation: which ids the next step tries as drafts, their rows and blocks, and what is taken back.

How many are worth a row follows from acceptance, load and the time of steps; of an engine's sequences, or of
one generation of a session. Rows of a draft are behind a sequence's latest id, in cells that are given back
if it is wrong. Knows sequences, blocks, plans and seconds; nothing of models, or of what becomes of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as ManyOf
from dataclasses import replace

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.drafting import DRAFT_ROWS, MOST_AGAIN, Drafts, StepTimes, worth_rows
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.plans.step_plan import Rows, StepPlan
from graphml.runtime.steps.computed_plan import Computed


class Speculation:
    """most: rows of a step with drafts; recurrent: states read ids again where a draft was wrong.

    n_drafts, n_drafted, n_accepted: drafts of all sequences so far, ids of them, and those ids sampled.
    """

    def __init__(self, n_batch: int = DRAFT_ROWS, recurrent: bool = False) -> None:
        self.times, self.most, self._recurrent = StepTimes(), min(DRAFT_ROWS, n_batch), recurrent
        self.n_drafts = self.n_drafted = self.n_accepted = 0

    def propose(self, running: ManyOf[Sequence]) -> dict[Sequence, Exception]:
        """Give running sequences their drafts for the next step, where none of them is at its prompt.

        Returns what was raised for a sequence, by its matcher or by who drafts for it.
        """
        failed: dict[Sequence, Exception] = {}
        n_again = sum(sequence.n_again for sequence in running)
        room = self.room(len(running), n_again)
        who: list[tuple[Sequence, Drafts]] = []
        for sequence in running:
            sequence.draft = []
            if sequence.drafts is not None and sequence.n_again <= MOST_AGAIN:
                who.append((sequence, sequence.drafts))
        if not who or room <= 0 or any(sequence.n_behind != 1 for sequence in running):
            return failed
        for sequence, drafts in who:
            try:
                if sequence.matcher is not None:
                    sequence.matcher.catch_up(sequence.ids, sequence.n_generated)
                sequence.draft = drafts.propose(sequence.ids, room, sequence.matcher)
            except Exception as error:  # this sequence's own
                failed[sequence] = error
        worth = self.worth([(drafts, sequence.draft) for sequence, drafts in who], len(running), n_again)
        for (sequence, _), draft in zip(who, worth, strict=True):
            sequence.draft = draft
        return failed

    def room(self, n_rows: int, n_again: int) -> int:
        """Rows for drafts beside those of so many sequences, and those that states read again."""
        return self.most - n_rows - n_again

    def worth(self, proposed: ManyOf[tuple[Drafts, list[int]]], n_rows: int, n_again: int) -> list[list[int]]:
        """Of each proposal the ids that a step of so many rows besides computes."""
        again = n_again if self._recurrent else None
        return worth_rows(proposed, self.times, self.most, again, n_rows)

    def counted(self, plan: StepPlan, computed: Computed) -> None:
        """A plan was computed."""
        n_again = sum(rows.n_again for rows in plan.rows)
        if plan.n_rows == plan.n_outputs + n_again <= DRAFT_ROWS and not plan.sources:
            self.times.measured(plan.n_rows, computed.seconds)
        for rows in plan.drafted.values():
            n_accepted = len(computed.further.get(rows.sequence, ()))
            self.n_drafts += 1
            self.n_drafted += rows.n_drafted
            self.n_accepted += n_accepted
            if rows.sequence.drafts is not None:
                rows.sequence.drafts.counted(rows.n_drafted, n_accepted)


def with_drafts(
    rows: list[Rows],
    pool: BlockPool,
    n_ctx: int,
    as_proposed: bool = True,
    checkpoints: Checkpoints | None = None,
) -> list[Rows]:
    """The rows of a step with those of drafts, where all of its sequences are at their latest id.

    as_proposed: whether all ran already when drafts were proposed, which fill a step with no row to spare.

    A draft takes only blocks that are left when each running sequence has another one: nobody is preempted
    for it. It ends where the context or the request does, and before an id behind which a checkpoint is made.
    """
    if not as_proposed or any(span.count != 1 or not span.n_outputs or span.n_scored for span in rows):
        for span in rows:
            span.sequence.draft = []
        return rows
    if not any(span.sequence.draft for span in rows):
        return rows
    drafted = []
    for span in rows:
        sequence = span.sequence
        count = min(len(sequence.draft), _room(sequence, n_ctx))
        if checkpoints is not None:
            count = 0 if span.keep is not None else min(count, checkpoints.room(sequence))
        needed = sequence.blocks_needed(1 + count, pool.block_size)
        if needed and pool.n_free < needed + len(rows):
            count = min(count, len(sequence.blocks) * pool.block_size - sequence.n_computed - 1)
        elif needed:
            sequence.blocks += pool.allocate(needed) or []
        del sequence.draft[max(count, 0) :]
        n = len(sequence.draft)
        drafted.append(replace(span, count=1 + n, n_outputs=1 + n, n_drafted=n))
    return drafted


def with_states_again(rows: list[Rows]) -> list[Rows]:
    """The rows of a step with those that recurrent states read again."""
    spans = [(span, span.sequence.n_again) for span in rows]
    return [
        replace(span, start=span.start - n, count=span.count + n, n_again=n) if n else span
        for span, n in spans
    ]


def computed(rows: Rows, pool: BlockPool, recurrent: bool) -> None:
    """The rows of a sequence were run: those of its ids are computed, of its draft none so far."""
    sequence = rows.sequence
    sequence.advance(rows.count - rows.n_again - rows.n_drafted, pool)
    sequence.n_again = rows.count - rows.n_drafted if recurrent and rows.n_drafted else 0


def _room(sequence: Sequence, n_ctx: int) -> int:
    """Ids that may follow the next one; a structure forces none that fills the context."""
    most = sequence.request.max_tokens
    room = n_ctx - len(sequence.ids) - 1 - (sequence.matcher is not None)
    return room if most is None else min(room, most - sequence.n_generated - 1)


def accept(sequence: Sequence, pool: BlockPool) -> None:
    """The latest id of a sequence was drafted: it is computed."""
    sequence.advance(1, pool)
    if sequence.n_again:
        sequence.n_again += 1


def give_back(sequence: Sequence, pool: BlockPool, was_right: bool) -> None:
    """All that was right of a draft is accepted: blocks behind the sequence's ids are free again.

    was_right: all of it; then recurrent states are what they are to be, too.
    """
    sequence.draft = []
    if was_right:
        sequence.n_again = 0
    kept = -(-len(sequence.ids) // pool.block_size)
    surplus = sequence.blocks[kept:]
    del sequence.blocks[kept:]
    for window in pool.windows:
        window.release(surplus, 0)
    pool.release(surplus)
