"""The texts of a plan: their hidden rows, pooled, or the logits that denoisers take.

They are computed by a program of their own, which runs before the plan's rows. Knows plans, programs, their
outputs and denoisers; what pooling means is `graphml.loading.pooling`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphml.backend import State
from graphml.compiler.compile import Compiled
from graphml.compiler.options import CompileOptions
from graphml.errors import WeightsError
from graphml.ir.op import Array
from graphml.loading.pooling import LOGITS
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.step_inputs import output_rows, write
from graphml.sampling.chain.next_logits import no_numbers
from graphml.sampling.denoiser import Denoiser, denoised

Fill = Callable[[Mapping[str, Array], StepPlan, CompileOptions], dict[str, int]]


def text_program(executor: Executor, pooling: str, n_ids: int, max_sequences: int) -> Compiled:
    """The program for texts of so many ids in all."""
    options = replace(executor.options, pooling=pooling)
    return executor.programs.compiled_for(n_ids, max_sequences, options=options)


def pooled_texts(
    executor: Executor, plan: StepPlan, state: State, max_sequences: int, fill: Fill
) -> dict[Sequence, Array]:
    """The rows of each text of a plan, float32 [rows, d], the caller's own; its lock is held.

    With the pooling `logits` those that each text's denoiser takes, float32 [rows, n_vocab], until the next
    step.

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
    if pooling == LOGITS:
        starts = np.cumsum(counts) - counts
        of_texts = [_denoiser(text).rows for text in plan.texts]
        counts = np.array([len(of_text) for of_text in of_texts], np.int32)
        wanted = np.concatenate(of_texts) + np.repeat(starts, counts)
    write(feed, {"output_rows": wanted})
    executor.n_steps += 1
    name = "logits" if pooling == LOGITS else "embeddings"
    outputs = compiled.program.run({**dims, "O": len(wanted)}, state)[name]
    if pooling in ("none", LOGITS):
        parts = np.split(outputs[: len(wanted)], np.cumsum(counts)[:-1])
    elif which == "all":  # the mean of each sequence, by its slot
        parts = [outputs[text.slot : text.slot + 1] for text in plan.texts]
    else:
        parts = [outputs[i : i + 1] for i in range(len(rows))]
    kept = parts if pooling == LOGITS else [part.copy() for part in parts]
    return dict(zip(plan.texts, kept, strict=True))


def _denoiser(text: Sequence) -> Denoiser:
    assert text.denoiser is not None
    return text.denoiser


def denoised_texts(texts: Mapping[Sequence, Array], path: Path) -> dict[Sequence, Exception]:
    """Have the answers among a step's texts take their logits; errors of those that cannot.

    And of texts whose rows are no numbers.
    """
    failed: dict[Sequence, Exception] = {}
    for text, rows in texts.items():
        if text.denoiser is not None:
            try:
                denoised(text.denoiser, rows, path)
            except Exception as error:  # of this request alone
                failed[text] = error
        elif not np.isfinite(rows).all():
            failed[text] = WeightsError(no_numbers(path, "NaN or infinity", "rows of a text"))
    return failed
