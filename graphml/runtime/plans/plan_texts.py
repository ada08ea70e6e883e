"""The texts of a plan: their hidden rows, pooled, by a program of their own that runs before the plan's rows.

Knows plans, programs and their outputs; what pooling means is `graphml.loading.pooling`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from graphml.backend import State
from graphml.compiler.compile import Compiled
from graphml.compiler.options import CompileOptions
from graphml.ir.op import Array
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.step_inputs import output_rows, write

Fill = Callable[[Mapping[str, Array], StepPlan, CompileOptions], dict[str, int]]


def text_program(executor: Executor, pooling: str, n_ids: int, max_sequences: int) -> Compiled:
    """The program for texts of so many ids in all."""
    options = replace(executor.options, pooling=pooling)
    return executor.programs.compiled_for(n_ids, max_sequences, options=options)


def pooled_texts(
    executor: Executor, plan: StepPlan, state: State, max_sequences: int, fill: Fill
) -> dict[Sequence, Array]:
    """The rows of each text of a plan, float32 [rows, d], the caller's own; its lock is held.

    fill: writes a plan's inputs, and returns the step's dims.
    """
    if not plan.texts:
        return {}
    pooling, rows = plan.texts[0].request.pooling, plan.text_rows
    counts = np.array([text.count for text in rows], np.int32)
    compiled = text_program(executor, pooling, int(counts.sum()), max_sequences)
    feed = compiled.program.inputs
    dims = fill(feed, StepPlan(rows), replace(executor.options, pooling=pooling))
    which = executor.graphs.rows(False, pooling)
    wanted = output_rows(counts, which)
    write(feed, {"output_rows": wanted})
    executor.n_steps += 1
    outputs = compiled.program.run({**dims, "O": len(wanted)}, state)["embeddings"]
    if pooling == "none":
        parts = np.split(outputs[: len(wanted)], np.cumsum(counts)[:-1])
    elif which == "all":  # the mean of each sequence, by its slot
        parts = [outputs[text.slot : text.slot + 1] for text in plan.texts]
    else:
        parts = [outputs[i : i + 1] for i in range(len(rows))]
    return {text: part.copy() for text, part in zip(plan.texts, parts, strict=True)}
