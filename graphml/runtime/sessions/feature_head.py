"""Drafts by a file of its own that reads hidden rows of layers of the model: EAGLE-3.

It drafts as a layer for multi-token prediction does (see `prediction_head`). Knows executors, hidden rows and
ids; nothing of what fits, of text, or of who asks for drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphml.ir.op import Floats
from graphml.loading.architecture import Architecture
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.pinned import Pinned
from graphml.runtime.sessions.prediction_head import PredictionHead, alone
from graphml.weights import ModelFile


class FeatureHead(PredictionHead):
    """The drafter `file` of a model, which becomes its `Executor.head`; see `draft_file`.

    drafted: the ids that its logits are of; None: all of the model's.
    """

    spec_type = "eagle3"

    def __init__(
        self, executor: Executor, file: ModelFile, architecture: Architecture, config: Any,
        drafted: np.ndarray[Any, np.dtype[np.int64]] | None,
    ) -> None:  # fmt: skip
        self._n_rows, self._n_own = len(config.target_layers) * config.n_embd_target, config.n_embd
        self._drafted, self._n_vocab = drafted, executor.n_vocab
        super().__init__(executor, file, alone(architecture, self._n_rows + self._n_own), config)

    def of_model(self, rows: Floats) -> Floats:
        """See `PredictionHead`: with no row of its own."""
        return np.pad(rows, ((0, 0), (0, self._n_own)))

    def of_own(self, rows: Floats) -> Floats:
        """See `PredictionHead`: with no rows of the model."""
        return np.pad(rows, ((0, 0), (self._n_rows, 0)))

    def step(self, sequence: Pinned, ids: Sequence[int], hidden: Floats) -> tuple[Floats, Floats]:
        """See `PredictionHead`; logits of all of the model's ids."""
        logits, row = super().step(sequence, ids, hidden)
        if self._drafted is None:
            return logits, row
        every = np.full(self._n_vocab, -np.inf, np.float32)
        every[self._drafted] = logits
        return every, row
