"""Steps with drafts: their program, and such a step of a session.

Each row of the program is a token of its own, as a batch of sequences has it, also where several are of one
sequence: so its logits are those of a step of one row, to the bit, where products are (see `drafting`).
"""

from __future__ import annotations

from collections.abc import Mapping

from graphml.compiler.compile import Compiled
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.drafting import DRAFT_ROWS
from graphml.runtime.evaluation import Floats, Take
from graphml.runtime.executor import Executor
from graphml.runtime.model_graphs import HIDDEN
from graphml.runtime.slots import Slot
from graphml.runtime.step_inputs import fill, write_factors
from graphml.runtime.step_plan import StepPlan
from graphml.system.pages import out_of_memory


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


def drafted_logits(
    executor: Executor, slot: Slot, ids: Array, options: CompileOptions, take: Take = lambda _: None
) -> Floats:
    """Append ids to a session's cells: the logits behind each, float32 [len(ids), n_vocab].

    take: gets the outputs. Whoever calls says which of them it keeps, and has the others rolled back.
    """
    cache, length = slot.cache, slot.length
    with executor.lock:
        program = draft_program(executor, options, cache.n_program(1)).program
        executor.n_steps += 1
        slot.restore_states()
        try:
            dims = fill(program.inputs, {slot.sequence: ids}, cache, "all")
            write_factors(program.inputs, options, len(ids))
            right = [] if cache.states is None else cache.states.begin({slot.sequence: length})
            outputs = program.run(dims, slot.state)
            if cache.states is not None:
                cache.states.end(right, cache.lengths)
            take(outputs)
            found: Floats = outputs["logits"][: len(ids)].copy()
        except BaseException as error:
            cache.rewind(slot.sequence, length)
            if isinstance(error, MemoryError):
                of = f"{executor.file.path}: a step of {len(ids)} tokens"
                raise out_of_memory(of, error, "give a smaller spec_draft_n_max, or fewer threads") from None
            raise
        return found


def show_hidden(outputs: Mapping[str, Array], plan: StepPlan) -> None:
    """Show the hidden rows of a step to the drafts of its sequences."""
    row = 0
    for rows in plan.rows:
        if rows.sequence.drafts is not None:
            rows.sequence.drafts.saw(rows.start, outputs[HIDDEN][row : row + rows.count])
        row += rows.count
