"""A text that a model reads step by step, in a pinned sequence of its own; for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.ir.op import Array, Floats
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.pinned import Room
from graphml.runtime.steps.runner import Runner


class OneText:
    """A text of at most `n_ctx` tokens; options: of its programs, None: those of the model."""

    def __init__(self, executor: Executor, n_ctx: int = 64, options: CompileOptions | None = None) -> None:
        self.room = Room(executor, options or executor.options, n_ctx)
        self.sequence = self.room.pinned(0)
        self.state = self.room.runner.state

    def step(self, ids: Sequence[int] | Array, all_logits: bool = True) -> Array:
        """Logits or embeddings after each of some more ids, or after the last."""
        return self.room.step({self.sequence: np.array(ids, np.int32)}, all_logits)

    def outputs(self, ids: Sequence[int] | Array, all_logits: bool = True) -> dict[str, Array]:
        """All outputs of the program."""
        found: dict[str, Array] = {}
        rows = self.sequence.rows(np.array(ids, np.int32), len(ids) if all_logits else 1)

        def take(outputs: Mapping[str, Array], end_row: int) -> None:
            found.update({name: value.copy() for name, value in outputs.items()})

        self.room.run({self.sequence: (rows, take)})
        return found


def logits_of(runner: Runner, plan: StepPlan) -> Floats:
    """The logits of a plan's output rows."""
    found: list[Floats] = []
    runner.run(plan, lambda outputs: found.append(outputs["logits"][: plan.n_outputs].copy()))
    return found[0]
