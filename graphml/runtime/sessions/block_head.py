"""Drafts of whole blocks by a file of its own that reads hidden rows of layers of the model: DFlash and kin.

One step reads the rows of new tokens and computes the block behind them: the last id and masks, each row of
which says what is in its place. The block is not kept. Files of DSpark and DFlash 2 have a second graph; it
corrects a row by the id before it, one after the other. Knows executors, hidden rows and ids; nothing of what
fits, of text, or of who asks for drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from graphml.errors import BackendError
from graphml.ir.cells import TABLE_WIDTH
from graphml.ir.op import Array, Floats
from graphml.loading.architecture import Architecture
from graphml.runtime.blocks.drafting import DRAFT_ROWS, Drafter, likeliest
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.programs.step_inputs import write
from graphml.runtime.sessions.pinned import Pinned
from graphml.runtime.sessions.prediction_head import HeadDrafter, PredictionHead, alone
from graphml.weights import ModelFile

MOST_ROWS = 64
"""Of a step of it: a block, and rows that are read with it; more are read before."""
Ids = np.ndarray[Any, np.dtype[np.int64]]


class BlockHead(PredictionHead):
    """The drafter `file` of a model, which becomes its `Executor.head`; see `draft_file`.

    drafted: the ids that its logits are of; None: all of the model's. correcting: the second graph;
    n_rows: of a block, as the file says, or as many as a step with drafts has.
    """

    spec_type = "dflash"

    def __init__(
        self, executor: Executor, file: ModelFile, architecture: Architecture, config: Any,
        drafted: Ids | None, correcting: Architecture | None,
    ) -> None:  # fmt: skip
        self._n_features, self._mask = len(config.target_layers) * config.n_embd_target, config.mask
        self._n_candidates = config.n_candidates
        n_batch = min(executor.n_batch, MOST_ROWS)
        self.n_rows, self.drafted = min(config.block_size, DRAFT_ROWS, n_batch), drafted
        super().__init__(executor, file, alone(architecture, self._n_features + 2), config, n_batch)
        self.correction: Correction | None = None
        self._first, self._selects = 1, False
        if correcting is not None:
            self._selects = "selector_hidden.weight" in file.tensors
            if not self._selects:
                self.spec_type, self._first = "dspark", 0 if config.sample_from_anchor else 1
            self.correction = Correction(executor, file, alone(correcting, config.n_embd), config, 1)

    def prepare(self) -> None:
        """See `PredictionHead`."""
        for every in (False, True):
            self.executor.programs.compiled_for(self.executor.n_batch, 1, every)
        if self.correction is not None:
            self.correction.prepare()

    def close(self) -> None:
        """See `PredictionHead`."""
        super().close()
        if self.correction is not None:
            self.correction.close()

    def drafter(self, n_ctx: int, n_vocab: int) -> Drafter:
        """See `PredictionHead`."""
        return BlockDrafter(self, n_ctx, n_vocab)

    def read(self, sequence: Pinned, rows: Floats) -> None:
        """Read rows of the model [n, features]."""
        self._step(sequence, rows, [])

    def block(self, sequence: Pinned, rows: Floats, last: int) -> Iterator[tuple[Floats, float | None]]:
        """Read such rows, and compute the block of a last id: logits for each id of a draft, and confidence.

        confidence: that the id is right, by DSpark's own measure; None: by the logits.
        """
        logits, hidden = self._step(sequence, rows, [last] + [self._mask] * (self.n_rows - 1))
        return self._corrected(logits, hidden, last)

    def _corrected(self, logits: Floats, hidden: Floats, token: int) -> Iterator[tuple[Floats, float | None]]:
        for row, of_row in zip(logits[self._first :], hidden[self._first :], strict=True):
            corrected, confidence = row, None
            if self.correction is not None:
                bias, confidence = self.correction.behind(token, of_row)
                own = bias if self.drafted is None or len(bias) == len(row) else bias[self.drafted]
                corrected = row + own
                if self._selects:
                    corrected = among_top(corrected, row, self._n_candidates)
            yield corrected, confidence
            token = self.id_of(int(np.argmax(corrected)))

    def id_of(self, column: int) -> int:
        """The id that a column of the logits is of."""
        return column if self.drafted is None else int(self.drafted[column])

    def _step(self, sequence: Pinned, rows: Floats, block: list[int]) -> tuple[Floats, Floats]:
        """Read rows and compute a block: its logits [n, ids] and hidden rows [n, D]."""
        ids = [0] * len(rows) + block
        hidden = np.zeros((len(ids), self._n_features + 2), np.float32)
        hidden[: len(rows), :-2] = rows
        hidden[len(rows) :, -2] = 1
        hidden[:, -1] = np.arange(len(ids))
        n_outputs, copies = max(len(block), 1), list[Floats]()

        def take(outputs: Mapping[str, Array], end: int) -> None:
            copies.extend(outputs[name][:n_outputs].copy() for name in ("logits", HIDDEN))

        with self.executor.lock:
            self._owner.n_steps += 1
            step = sequence.rows(np.array(ids, np.int32), n_outputs)
            sequence.room.run({sequence: (step, take)}, inputs={HIDDEN: hidden})
        logits, own = copies
        return logits, own


class Correction(PredictionHead):
    """The second graph: of the id before, and a row of the block, what is added to that row's logits."""

    def prepare(self) -> None:
        """See `PredictionHead`."""
        self.executor.compiled(1, 1)

    def behind(self, token: int, hidden: Floats) -> tuple[Floats, float | None]:
        """The sums for all ids of a draft [ids], and the confidence; hidden: the row's own [D]."""
        with self.executor.lock:
            compiled = self.executor.compiled(1, 1)
            program, dims = compiled.program, {"T": 1, "O": 1, "S": 1, "B": TABLE_WIDTH, "C": 0}
            write(program.inputs, {"tokens": np.array([token], np.int32), HIDDEN: hidden[None]})
            self._owner.n_steps += 1
            outputs = program.run(dims, self.executor.device.state(compiled.graph, dims))
            confidence = float(outputs[HIDDEN][0, 0]) if HIDDEN in outputs else None
            return outputs["logits"][0].copy(), confidence


def among_top(values: Floats, row: Floats, count: int) -> Floats:
    """The values of the ids that are the top `count` of a row, minus infinity for the others."""
    top = np.argsort(-row, kind="stable")[:count]
    chosen = np.full_like(values, -np.inf)
    chosen[top] = values[top]
    return chosen


class BlockDrafter(HeadDrafter):
    """Drafts of one sequence; see `HeadDrafter`, whose pairs' cells are those of the tokens here."""

    def __init__(self, head: BlockHead, n_ctx: int, n_vocab: int) -> None:
        super().__init__(head, n_ctx, n_vocab)
        self._blocks = head

    def _drafted(self, ids: list[int], rows: Floats, count: int) -> list[int]:
        """Read the rows of the tokens before these ids, and the block of the last one."""
        head, n_held = self._blocks, len(self._held) + len(ids)
        try:
            cells = self._cells = self._cells_for(n_held + head.n_rows)
        except (BackendError, MemoryError):  # a guess is not worth an answer: it forgets the text
            self._begin_at(self._next + len(ids))
            return []
        size = head.executor.n_batch
        while len(rows) > size - head.n_rows:
            head.read(cells, rows[:size])
            rows = rows[size:]
        block = head.block(cells, rows, ids[-1])
        self._held += ids
        self._next += len(ids)
        self._without_draft(cells)
        draft = list[int]()
        for row, confidence in islice(block, count):
            best = likeliest(row, confidence)
            if best is None:
                break
            draft.append(head.id_of(best))
        return draft
