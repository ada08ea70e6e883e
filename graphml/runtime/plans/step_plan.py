"""A step as data: which ids of which sequences are computed, and which rows produce logits.

Made by the scheduler, run by the runner; knows neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from graphml.compiler.options import CompileOptions
from graphml.ir.op import Array
from graphml.runtime.blocks.sequence import Sequence


@dataclass(frozen=True, eq=False)
class Move:
    """Cells whose rows go to others, and their positions by a difference; 0: they are copied.

    sources, targets: int32 [n]. A source that is also a target is so at its own place or a later one.
    """

    sources: Array
    targets: Array
    difference: int = 0


@dataclass(frozen=True, eq=False)
class Rows:
    """`count` ids of a sequence from position `start` on; the last `n_outputs` of them give logits.

    The first `n_scored` of those say how likely the prompt is, and no token is sampled from them. The last
    `n_drafted` are a draft: they count as far as they are what is sampled. The first `n_again` are computed
    already: the recurrent states read them again, from where they were before a draft that was wrong.

    ids: what the rows are of, int32 [count], where the sequence does not hold them before the step was run.

    Before all rows of the step: restore: the copy that the sequence's recurrent states are; moves of cells,
    in order; states_of: the slot whose recurrent states are copied to the sequence's, or None. keep: where
    its states are copied to, after all rows. See `graphml.runtime.plans.checkpoints`.
    """

    sequence: Sequence
    start: int
    count: int
    n_outputs: int = 0
    n_scored: int = 0
    restore: int | None = None
    keep: int | None = None
    moves: tuple[Move, ...] = ()
    states_of: int | None = None
    n_drafted: int = 0
    n_again: int = 0
    ids: Array | None = None

    @property
    def first_new(self) -> int:
        """The position of the first row that is not computed already."""
        return self.start + self.n_again

    @property
    def first_scored(self) -> int:
        """The position of the first row that gives logits."""
        return self.start + self.count - self.n_outputs

    @property
    def is_known(self) -> bool:
        """Whether what its sequence computes next is known before the step is read."""
        return not self.n_outputs and self.sequence.captured is None

    @property
    def samples(self) -> bool:
        """Whether a token is sampled from its last row."""
        return self.n_outputs > self.n_scored


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One step. preempted: sequences that gave their blocks back for it.

    sources: sequences whose source texts an encoder reads before, each whole. texts: those of which rows are
    wanted, all pooled in the same way; each is computed whole before the other rows, and ends with the step,
    or waits again where it is an answer that is denoised.
    options: how the program of the rows is compiled: with captured values, patches, adapters; None: as the
    requests say. inputs: more of the program's inputs by name, a row for each of the plan's.
    """

    rows: tuple[Rows, ...]
    preempted: tuple[Sequence, ...] = ()
    sources: tuple[Sequence, ...] = ()
    texts: tuple[Sequence, ...] = ()
    options: CompileOptions | None = None
    inputs: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def n_rows(self) -> int:
        """Ids computed."""
        return sum(map(attrgetter("count"), self.rows))

    @cached_property
    def n_source_ids(self) -> int:
        """Ids that the encoder reads."""
        return sum(len(sequence.request.source) for sequence in self.sources)

    @cached_property
    def text_rows(self) -> tuple[Rows, ...]:
        """All ids of each text."""
        return tuple([
            Rows(text, 0, text.n_text, ids=None if text.denoiser is None else text.denoiser.text)
            for text in self.texts
        ])  # fmt: skip

    @cached_property
    def all_rows(self) -> tuple[Rows, ...]:
        """Those of texts, too."""
        return (*self.rows, *self.text_rows)

    @cached_property
    def n_ids(self) -> int:
        """Ids that are computed or read, of whatever kind."""
        return self.n_rows + self.n_source_ids + sum(text.n_text for text in self.texts)

    @cached_property
    def n_outputs(self) -> int:
        """Rows that give logits."""
        return sum(map(attrgetter("n_outputs"), self.rows))

    @cached_property
    def sampled(self) -> dict[int, Sequence]:
        """Output row -> the sequence whose latest id it is: what follows that is sampled from the row."""
        return {row: rows.sequence for row, rows in self._output_rows}

    @cached_property
    def drafted(self) -> dict[int, Rows]:
        """The same rows, of sequences with a draft; a row for each id of it follows."""
        return {row: rows for row, rows in self._output_rows if rows.n_drafted}

    @cached_property
    def _output_rows(self) -> list[tuple[int, Rows]]:
        ends = itertools.accumulate(rows.n_outputs for rows in self.rows)
        with_ends = zip(ends, self.rows, strict=True)
        return [(end - 1 - rows.n_drafted, rows) for end, rows in with_ends if rows.samples]
