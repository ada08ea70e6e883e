"""What a pinned sequence holds, as rows by kind: keys and values, windows, a source's rows, recurrent states.

Of sliding-window layers these are the cells that the next token sees, from the beginning of a block on.

Knows sequences, states and rows; nothing of ids, sampling or files' formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import CELLS
from graphml.runtime.blocks.source_blocks import SOURCE
from graphml.runtime.blocks.state_rows import held_rows
from graphml.runtime.plans.checkpoints import STATES
from graphml.runtime.sessions.pinned import Pinned


def sequence_arrays(sequence: Pinned) -> dict[str, dict[str, Array]]:
    """All that a sequence holds, by kind and name; the arrays are the caller's own."""
    with sequence.room.executor.lock:
        sequence.restore_states()  # a rewind has left that to the next step
        parts = sequence.room.runner.parts
        return {kind: parts.read_rows(kind, rows) for kind, rows in _rows(sequence).items()}


def fill_sequence(
    sequence: Pinned,
    length: int,
    source: Array,
    array: Callable[[str, str, tuple[int, ...], np.dtype[Any]], Array],
) -> None:
    """Have an empty sequence hold so many tokens, and a source text.

    array: called with a kind, a name, a shape and a dtype, returns what `sequence_arrays` has of them.
    """
    with sequence.room.executor.lock:  # others of the room may be running
        sequence.hold(length, source)
        parts = sequence.room.runner.parts
        for kind, rows in _rows(sequence).items():
            for name, node in parts.nodes[kind].items():
                parts.write_rows(rows, {name: array(kind, name, *held_rows(node, len(rows)))})
        sequence.was_computed(True)


def copy_sequence(sequence: Pinned, target: Pinned) -> None:
    """Have an empty sequence, of no fewer tokens, hold what another one holds."""
    source, arrays = sequence.request.source[: sequence.n_source], sequence_arrays(sequence)
    fill_sequence(target, sequence.n_computed, source, lambda kind, name, *_: arrays[kind][name])


def _rows(sequence: Pinned) -> dict[str, Array]:
    """By kind, the rows of states that are in use."""
    runner = sequence.room.runner
    rows = {
        CELLS: sequence.cells(0, sequence.n_computed),
        **{group.name: sequence.seen_cells(group) for group in runner.executor.cell_groups},
        SOURCE: sequence.cells(0, sequence.n_source),
        STATES: np.array([sequence.slot] if sequence.n_computed else [], np.int32),
    }
    return {kind: rows[kind] for kind in runner.parts.nodes}
