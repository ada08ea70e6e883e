"""The cells of a sequence, for a drafter that reads them: a row of another model's program at one position.

Knows runners and sequences; nothing of what the program computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from graphml.backend import Program
from graphml.ir.op import Array
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import Rows, StepPlan
from graphml.runtime.steps.runner import Runner


@dataclass(frozen=True)
class SequenceCells:
    """A sequence, and the runner that holds its keys and values."""

    runner: Runner
    sequence: Sequence

    @property
    def n_sequences(self) -> int:
        """Of how many sequences a program is that reads them."""
        return 1 if self.runner.alone else self.runner.max_sequences

    def read(
        self,
        program: Program,
        position: int,
        token: int,
        inputs: Mapping[str, Array],
        take: Callable[[Mapping[str, Array]], None],
    ) -> None:
        """Run a program of one row, at a position that is computed; take: gets its outputs."""
        rows = Rows(self.sequence, position, 1, 1, ids=np.array([token], np.int32))
        self.runner.read_cells(program, StepPlan((rows,), inputs=inputs), take)
