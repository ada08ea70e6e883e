"""Captures and patches of a step plan: whose rows a captured value has, and which functions patches call.

Knows plans and outputs; nothing of programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from graphml.ir.op import Array
from graphml.runtime.blocks.row_patches import PatchPoint
from graphml.runtime.plans.step_plan import StepPlan


def keep_captured(outputs: Mapping[str, Array], plan: StepPlan) -> None:
    """Give each sequence that captures its rows of the outputs."""
    row = output = 0
    for rows in plan.rows:
        sequence, n_outputs = rows.sequence, rows.n_outputs
        at = {"T": slice(row, row + rows.count), "O": slice(output, output + n_outputs)}
        row, output = row + rows.count, output + n_outputs
        if sequence.captured is not None:
            sequence.captured.take(outputs, rows.start + rows.count + sequence.n_dropped, at)


@contextmanager
def patched(plan: StepPlan) -> Iterator[None]:
    """Within, patches call the functions of the plan's sequence: those with patches are alone in a plan.

    Afterwards they hold none of a request, which may have ended.
    """
    points = [
        (patch.pattern, patch.function, patch.function.function)
        for patch in (plan.options.patch if plan.options is not None else ())
        if isinstance(patch.function, PatchPoint)
    ]
    for pattern, point, _ in points:
        (rows,) = plan.rows
        point.end = rows.start + rows.count + rows.sequence.n_dropped
        point.function = rows.sequence.request.patches.get(pattern, point.function)
    try:
        yield
    finally:
        for _, point, before in points:
            point.function = before
