"""Log-probabilities of prompts: which rows they take, and what follows from those rows.

Rows whose logits are wanted are computed, though others may have computed them: blocks hold no logits. What
is before them is found as that of other prompts. Scored rows are few in a step, since a row of logits is
large. Knows sequences and rows; nothing of blocks or steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graphml.errors import WeightsError
from graphml.ir.op import Array, Floats
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import StepPlan
from graphml.sampling import flaw_of
from graphml.sampling.candidates.logprobs import TokenLogprobs, of_row
from graphml.sampling.chain.next_logits import no_numbers

MOST_ROWS = 64
"""Rows of prompts in a step that give logits: 37 MiB for 151,936 words."""


def is_scored(sequence: Sequence) -> bool:
    """Whether logits of its prompt, or values of all rows that could give some, are wanted still."""
    if sequence.captured is not None and sequence.captured.of_outputs:
        reads = sequence.n_computed + sequence.n_dropped < sequence.request.n_prompt
        return reads or sequence.n_behind > 1  # ids that a structure has forced, too
    return sequence.prompt_scores is not None and len(sequence.prompt_scores) < sequence.request.n_prompt


def n_findable(sequence: Sequence) -> int:
    """How many of its first ids it may find in blocks: no row that is computed for its logits.

    Those are the last one, and all that `is_scored` is about.
    """
    last = len(sequence.ids) - 1
    if not is_scored(sequence):
        return last
    if sequence.captured is not None and sequence.captured.of_outputs:
        return 0
    return min(last, len(sequence.prompt_scores or ()) - 1)


def n_scored(sequence: Sequence, start: int, count: int) -> int:
    """How many of its rows from `start` on give what is known to follow: the last ones of those within.

    Of its prompt, or where values of these rows are captured, of all its ids.
    """
    if not is_scored(sequence):
        return 0
    if sequence.captured is not None and sequence.captured.of_outputs:
        return max(0, min(start + count, len(sequence.ids) - 1) - start)
    first = max(start, len(sequence.prompt_scores or ()) - 1)
    return max(0, min(start + count, sequence.request.n_prompt - 1 - sequence.n_dropped) - first)


def keep_scores(outputs: Mapping[str, Array], plan: StepPlan, path: Path) -> dict[Sequence, Exception]:
    """Add what the rows of a plan say of prompts to their sequences; errors of those without numbers."""
    at = 0
    failed: dict[Sequence, Exception] = {}
    for rows in plan.rows:
        scores, request = rows.sequence.prompt_scores, rows.sequence.request
        for i in range(rows.n_scored):
            position = rows.first_scored + i + 1
            if scores is None or len(scores) != position:
                continue
            try:
                scores.append(score_of(outputs["logits"][at + i], request, position, path))
            except WeightsError as error:
                failed[rows.sequence] = error
                break
        at += rows.n_outputs
    return failed


def score_of(row: Floats, request: Request, position: int, path: Path) -> TokenLogprobs:
    """How likely an id of a prompt is by the row before it; WeightsError for a row without numbers."""
    flaw = flaw_of(row)
    if flaw is not None:
        raise WeightsError(no_numbers(path, flaw))
    n_top = request.params.prompt_logprobs or 0
    return of_row(row, int(request.ids[position]), n_top, request.vocabulary)
