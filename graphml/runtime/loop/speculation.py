"""Speculation in an engine: the drafts of its next step, by acceptance, load and the time of its steps.

Knows sequences, plans and seconds; nothing of models, or of what becomes of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as ManyOf

from graphml.runtime.blocks.drafting import DRAFT_ROWS, MOST_AGAIN, Drafts, StepTimes, worth_rows
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import Computed


class Speculation:
    """most: rows of a step with drafts; recurrent: states read ids again where a draft was wrong.

    n_drafts, n_drafted, n_accepted: drafts of all sequences so far, ids of them, and those ids sampled.
    """

    def __init__(self) -> None:
        self._times, self.most, self.recurrent = StepTimes(), DRAFT_ROWS, False
        self.n_drafts = self.n_drafted = self.n_accepted = 0

    def propose(self, running: ManyOf[Sequence]) -> dict[Sequence, Exception]:
        """Give running sequences their drafts for the next step, where none of them is at its prompt.

        `most` less one for each of them are there for drafts: none at so many sequences. Returns what was
        raised for a sequence, by its matcher or by who drafts for it.
        """
        failed: dict[Sequence, Exception] = {}
        n_again = sum(sequence.n_again for sequence in running)
        room = self.most - len(running) - n_again
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
        again = n_again if self.recurrent else None
        proposed = [(drafts, sequence.draft) for sequence, drafts in who]
        worth = worth_rows(proposed, self._times, self.most, again, len(running))
        for (sequence, _), draft in zip(who, worth, strict=True):
            sequence.draft = draft
        return failed

    def counted(self, plan: StepPlan, computed: Computed) -> None:
        """A plan was computed."""
        n_again = sum(rows.n_again for rows in plan.rows)
        if plan.n_rows == plan.n_outputs + n_again <= DRAFT_ROWS and not plan.sources:
            self._times.measured(plan.n_rows, computed.seconds)
        for rows in plan.drafted.values():
            n_accepted = len(computed.further.get(rows.sequence, ()))
            self.n_drafts += 1
            self.n_drafted += rows.n_drafted
            self.n_accepted += n_accepted
            if rows.sequence.drafts is not None:
                rows.sequence.drafts.counted(rows.n_drafted, n_accepted)
