"""Measures a model's steps in an engine and fits a cost model to them.

Knows engines and their timelines; nothing of what is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from graphml.api.engine import Engine
from graphml.api.model import Model
from graphml.errors import UsageError
from graphml.runtime.loop.timeline import TimelineStep
from graphml.server.options.server_options import DEFAULT_SAMPLING
from graphml.simulation.cost_model import CostModel, contexts

ANSWER = 32
"""Tokens of the answers that are measured."""
IDLE_S = 0.005
"""A longer time between two steps is one in which nothing waited."""
FEWEST_STEPS = 4
"""Measured steps of about as many rows, without which these are interpolated."""
TRIM = 0.5
"""Steps that take so much more or less than the others of their kind were disturbed."""
ROUNDS = 2


def measure(
    model: Model,
    parallel: int = 8,
    n_ctx: int | None = None,
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> CostModel:
    """The cost model of an engine with so many sequences of so many tokens, on this machine as it is now."""
    executor = model.executor
    if executor.recurrent or executor.cell_groups or executor.denoises or not executor.generates:
        raise UsageError(
            f"measure: {executor.file.path}: wanted a model whose layers all attend to all cells"
        )
    with model.engine(max_sequences=parallel, n_ctx=n_ctx) as engine:
        loads = _loads(engine, executor.n_batch, np.random.default_rng(0))
        total = ROUNDS * len(loads)
        for load in loads:
            _run(engine, load)  # compiles
        with engine.timeline() as timeline:
            for done in range(total):
                report("steps", done, total)
                _run(engine, loads[done % len(loads)])
            steps = timeline.steps
        report("steps", total, total)
        knots, values, error = fitted(*_features(steps))
        output_s, context_s, chunk_context_s = values[-3:]
        return CostModel(
            tuple(zip(knots, values[:-3], strict=True)), output_s, context_s, chunk_context_s,
            engine.n_ctx, engine.snapshot().n_blocks, engine.max_sequences, executor.n_batch,
            executor.max_chunk, name=Path(executor.file.path).name, error=error,
        )  # fmt: skip


def _loads(engine: Engine, n_batch: int, numbers: np.random.Generator) -> list[list[list[int]]]:
    """Prompts that are asked together: few and many, short and long, and all kinds beside each other."""
    most = max(2, engine.n_ctx - ANSWER - 1)
    short, long, slots = min(24, most), min(most, 4 * n_batch), engine.max_sequences
    few = sorted({1, 2, 3, slots, *range(4, slots, 4)})
    sizes = [[short] * count for count in few if count <= slots]
    sizes += [[min(n_batch >> i, most)] for i in range(max(1, n_batch.bit_length() - 4))]
    sizes += [[long], [max(2, long // 4)] * slots, numbers.integers(2, max(3, long // 4), 3 * slots).tolist()]
    return [[numbers.integers(0, engine.n_vocab, size).tolist() for size in each] for each in sizes]


def _run(engine: Engine, prompts: Sequence[list[int]]) -> None:
    """Ask some prompts at once, none of which is found computed."""
    numbers = np.random.default_rng()
    for handle in [
        engine.submit(
            [int(numbers.integers(engine.n_vocab)), *ids[1:]], DEFAULT_SAMPLING, ANSWER, salt=numbers.bytes(8)
        )
        for ids in prompts
    ]:
        handle.result()


def _features(steps: Sequence[TimelineStep]) -> tuple[Any, Any, Any]:
    """Of each step: rows; output rows and both kinds of cells; seconds from the end of the last one."""
    rows = [
        [
            step.n_rows,
            sum(span.samples for span in step.rows),
            *contexts((span.start, span.count) for span in step.rows),
            step.end_s - (before.end_s if step.begin_s - before.end_s < IDLE_S else step.begin_s),
        ]
        for before, step in pairwise(steps)
        if step.rows and not step.failed
    ]
    table = np.array(rows, float)
    return table[:, 0], table[:, 1:-1], table[:, -1]


def fitted(rows: Any, others: Any, seconds: Any) -> tuple[list[int], list[float], float]:
    """Knots of rows, seconds at them and of each of the others, and the median error.

    Least squares of relative errors, without negative seconds; disturbed steps are left out.
    """
    powers = [2**i for i in range(int(rows.max()).bit_length())]
    knots = sorted(
        {int(rows.min()), int(rows.max()), *(power for power in powers if rows.min() < power < rows.max())}
    )
    while True:
        hats = np.stack([np.interp(rows, knots, unit) for unit in np.eye(len(knots))], 1)
        scarce = [i for i in range(1, len(knots) - 1) if hats[:, i].sum() < FEWEST_STEPS]
        if not scarce:
            break
        del knots[scarce[0]]
    table = np.concatenate([hats, others], 1)
    counts = np.ones(len(seconds), bool)
    for _ in range(3):
        values = _positive(table[counts] / seconds[counts, None])
        ratios = seconds / np.maximum(table @ values, 1e-9)
        counts = abs(ratios / np.median(ratios) - 1) < TRIM
    error = float(np.median(abs(ratios[counts] - 1)))
    at_knots = np.maximum.accumulate(values[: len(knots)])  # more rows never take less: noise may say so
    positive = at_knots[at_knots > 0]
    values[: len(knots)] = np.maximum(at_knots, positive[0] if len(positive) else 1e-9)
    return knots, values.tolist(), error


def _positive(table: Any) -> Any:
    """Factors from 0 on by which the rows become about 1."""
    scale = np.abs(table).max(0)
    used = scale > 0
    while True:
        values = np.zeros(table.shape[1])
        values[used] = (
            np.linalg.lstsq(table[:, used] / scale[used], np.ones(len(table)), rcond=None)[0] / scale[used]
        )
        if not (values < 0).any():
            return values
        used &= values >= 0
