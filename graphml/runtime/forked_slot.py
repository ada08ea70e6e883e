"""A copy of a slot, in arrays of its own. Knows slots and arrays."""

from __future__ import annotations

from graphml.compiler.options import CompileOptions
from graphml.runtime.executor import Executor
from graphml.runtime.slot_arrays import copy_slot
from graphml.runtime.slots import Slot, session_slot


def forked_slot(executor: Executor, options: CompileOptions, slot: Slot) -> Slot:
    """A copy of a slot, of one sequence of as many tokens; BackendError without the memory."""
    made = session_slot(executor, options, slot.cache.n_ctx)
    if slot.group is None:
        made.leave_group()  # what it holds may have been computed with adapters that are set no more
    copy_slot(executor, slot, made, options)
    return made
