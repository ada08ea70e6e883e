"""Drafts by a file of its own that reads the model's keys and values: Gemma 4's assistants.

It keeps nothing. Each id of a draft is computed from the one before, and from the model's hidden row or its
own, at the position of the last token that the model has computed. Knows executors, hidden rows, ids and the
cells of a sequence; nothing of what fits, or of who tries the drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphml.ir.op import Array, Floats
from graphml.ir.step import WrittenCache
from graphml.loading.architecture import Architecture
from graphml.runtime.blocks.drafting import DRAFT_ROWS, Drafter, Proposal, greedy_draft
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.sessions.prediction_head import PredictionHead, alone
from graphml.runtime.steps.sequence_cells import SequenceCells
from graphml.weights import ModelFile


class SharedCellsHead(PredictionHead):
    """The drafter `file` of a model, which becomes its `Executor.head`; see `draft_file`.

    caches: of the model, that each layer reads.
    """

    spec_type = "mtp"

    def __init__(
        self, executor: Executor, file: ModelFile, architecture: Architecture, config: Any,
        caches: tuple[WrittenCache, ...],
    ) -> None:  # fmt: skip
        super().__init__(executor, file, alone(architecture, config.n_embd_target), config)
        self.executor.graphs.reads = caches

    def prepare(self) -> None:
        """See `PredictionHead`: the program follows from where the cells are."""

    def drafter(self, n_ctx: int, n_vocab: int) -> Drafter:
        """See `PredictionHead`."""
        return SharedCellsDrafter(self, n_vocab)

    def cell_bytes(self) -> int:
        """See `PredictionHead`."""
        return 0

    def behind(self, cells: SequenceCells, last: int, token: int, hidden: Floats) -> tuple[Floats, Floats]:
        """Logits of what follows a token, and its own row [W].

        last: the position of the last token that is computed. hidden: the row [W] of the token before.
        """
        copies: list[Floats] = []

        def take(outputs: Mapping[str, Array]) -> None:
            copies.extend(outputs[name][0].copy() for name in ("logits", HIDDEN))

        program = self.executor.compiled(1, 1, None, cells.n_sequences).program
        cells.read(program, last, token, {HIDDEN: hidden[None]}, take)
        logits, row = copies
        return logits, row


class SharedCellsDrafter:
    """Drafts of one sequence; `saw` gets the hidden rows of every step that computes it.

    n_vocab: larger ids are no tokens.
    """

    costs_time = True

    def __init__(self, head: SharedCellsHead, n_vocab: int) -> None:
        self._head, self._n_vocab = head, n_vocab
        self._cells: SequenceCells | None = None
        self._start, self._rows = 0, np.empty((0, 0), np.float32)

    def reads(self, cells: SequenceCells) -> None:
        """See `ReadsCells`."""
        if self._cells is None:
            self._head.executor.compiled(1, 1, None, cells.n_sequences)
        self._cells = cells

    def saw(self, start: int, rows: Floats) -> None:
        """See `ReadsHidden`: of the latest step, whose last rows may be of a draft."""
        first = max(len(rows) - DRAFT_ROWS, 0)
        self._start, self._rows = start + first, rows[first:].copy()

    def propose(self, ids: Sequence[int], count: int) -> Proposal:
        """See `Drafter`; nothing where the hidden row before the last id is not known."""
        last = len(ids) - 2  # the last id's own keys are not computed yet
        at, cells = last - self._start, self._cells
        if cells is None or not 0 <= at < len(self._rows):
            return Proposal([])
        row = self._rows[at]

        def step(token: int) -> Floats:
            nonlocal row
            logits, row = self._head.behind(cells, last, token, row)
            return logits

        return Proposal(greedy_draft(step(ids[-1]), count, step, self._n_vocab))

    def close(self) -> None:
        """See `Drafter`."""
        self._cells = None
