"""A step as data: which ids of which sequences are computed, and which rows give logits.

Made by the scheduler, run by the runner; knows neither.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from graphml.runtime.sequence import Sequence


@dataclass(frozen=True, eq=False)
class Rows:
    """`count` ids of a sequence from position `start` on; the last `n_outputs` of them give logits.

    restore: the copy that the sequence's recurrent states are, before all rows of the step. keep: where they
    are copied to, after all rows. See `graphml.runtime.checkpoints`.
    """

    sequence: Sequence
    start: int
    count: int
    n_outputs: int = 0
    restore: int | None = None
    keep: int | None = None


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One step. preempted: sequences that gave their blocks back for it.

    sources: sequences whose source texts an encoder reads before, each whole.
    """

    rows: tuple[Rows, ...]
    preempted: tuple[Sequence, ...] = ()
    sources: tuple[Sequence, ...] = ()

    @property
    def n_rows(self) -> int:
        """Ids computed."""
        return sum(rows.count for rows in self.rows)

    @property
    def n_source_ids(self) -> int:
        """Ids that the encoder reads."""
        return sum(len(one.request.source) for one in self.sources)

    @property
    def n_outputs(self) -> int:
        """Rows that give logits."""
        return sum(rows.n_outputs for rows in self.rows)

    @property
    def sampled(self) -> dict[int, Sequence]:
        """Output row -> the sequence that it is the last of: what follows it is sampled from that row."""
        ends = itertools.accumulate(rows.n_outputs for rows in self.rows)
        return {end - 1: rows.sequence for end, rows in zip(ends, self.rows, strict=True) if rows.n_outputs}
