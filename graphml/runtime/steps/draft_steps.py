"""Steps with drafts: which models take them, and their program.

Each row of the program is a token of its own, as a batch of sequences has it, also where several are of one
sequence: so its logits are those of a step of one row, to the bit, where products are (see `drafting`).
"""

from __future__ import annotations

from collections.abc import Mapping

from graphml.compiler.compile import Compiled
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.blocks.drafting import DRAFT_ROWS
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.model_graphs import HIDDEN


def takes_drafts(executor: Executor) -> bool:
    """Whether what a model has read of a wrong draft can be taken back.

    Recurrent states read some ids again, for which windows would have to keep more than they do. States that
    plain ops use read one token of a text in a step.
    """
    return executor.max_chunk == executor.n_batch and not (executor.recurrent and executor.cell_groups)


def check_drafts(executor: Executor) -> None:
    """UsageError for a model that takes no drafts."""
    if executor.max_chunk < executor.n_batch:
        raise UsageError(
            f"spec_type: {executor.architecture.name} has states of its own, read and written token by "
            "token, and drafts have several in a step; wanted none"
        )
    if not takes_drafts(executor):
        raise UsageError(
            f"spec_type: {executor.architecture.name} has recurrent states and windows, from which rejected "
            "ids cannot be taken back; wanted none, or a model opened with swa_full"
        )


def draft_program(executor: Executor, options: CompileOptions | None, max_sequences: int) -> Compiled:
    """The program of steps of at most `DRAFT_ROWS` rows, all of which give logits."""
    rows = min(DRAFT_ROWS, executor.n_batch)
    return executor.compiled(rows, rows, options, max(rows, max_sequences))


def show_hidden(outputs: Mapping[str, Array], plan: StepPlan) -> None:
    """Show the hidden rows of a step to the drafts of its sequences."""
    row = 0
    for rows in plan.rows:
        if rows.sequence.drafts is not None:
            rows.sequence.drafts.saw(rows.start, outputs[HIDDEN][row : row + rows.count])
        row += rows.count
