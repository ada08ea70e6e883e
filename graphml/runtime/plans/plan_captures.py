"""Captures and patches of a step plan: whose rows a captured value has, and which functions patches call.

Knows plans, outputs and compile options; nothing of programs.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphml.compiler.options import CompileOptions
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


def show_patches(options: CompileOptions, plan: StepPlan) -> None:
    """Have patches call the functions of the plan's sequence: those with patches are alone in a plan."""
    for patch in options.patch:
        if isinstance(patch.function, PatchPoint):
            (rows,) = plan.rows
            patches = rows.sequence.request.patches
            patch.function.end = rows.start + rows.count + rows.sequence.n_dropped
            patch.function.function = patches.get(patch.pattern, patch.function.function)
