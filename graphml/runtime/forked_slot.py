"""A copy of a slot, in arrays of its own. Knows slots and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.ir.op import Array
from graphml.runtime.executor import Executor
from graphml.runtime.slot_arrays import fill_slot, slot_arrays
from graphml.runtime.slots import Slot, session_slot


class _Held:
    """See `graphml.runtime.slot_arrays.Arrays`."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def array(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | str) -> Array:
        return self._arrays[name]


def forked_slot(executor: Executor, options: CompileOptions, slot: Slot) -> Slot:
    """A copy of a slot, of one sequence of as many tokens; BackendError without the memory."""
    made = session_slot(executor, options, slot.cache.n_ctx)
    if slot.group is None:
        made.leave_group()  # what it holds may have been computed with adapters that are set no more
    held = _Held(slot_arrays(executor, slot, options))
    fill_slot(executor, made, options, held, slot.length, slot.source_length)
    return made
