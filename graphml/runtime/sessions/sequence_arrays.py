"""What a pinned sequence holds, as named arrays: keys and values, recurrent states, an encoder's rows.

Of sliding-window layers these are the cells that the next token sees, from the beginning of a block on.

Knows sequences, states and arrays; nothing of ids, sampling or files' formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.runtime.blocks.state_rows import held_rows, read_rows, write_rows
from graphml.runtime.sessions.pinned import Pinned

CELLS, WINDOWS, SOURCE, SEQUENCE = "cells/", "windows/", "source/", "sequence/"


class ArraySource(Protocol):
    """Where arrays are read from; see `graphml.weights.tensor_file.TensorFile`."""

    def array(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | str) -> Array:
        """An array of this shape and dtype, or an error."""


@dataclass(frozen=True)
class _Part:
    """States that are saved in the same way: their nodes, by name, and the rows that are in use."""

    prefix: str
    nodes: dict[str, Node]
    rows: Array


def sequence_arrays(sequence: Pinned) -> dict[str, Array]:
    """All that a sequence holds; the arrays are the caller's own."""
    arrays: dict[str, Array] = {}
    with sequence.room.executor.lock:
        sequence.restore_states()  # a rewind has left that to the next step
        for part in _parts(sequence):
            rows = read_rows(sequence.room.runner.state, part.nodes, part.rows)
            arrays |= {part.prefix + name: array for name, array in rows.items()}
    return arrays


def fill_sequence(sequence: Pinned, arrays: ArraySource, length: int, source: Array) -> None:
    """Have an empty sequence hold so many tokens, and a source text, as arrays saved earlier say."""
    with sequence.room.executor.lock:  # others of the room may be running
        sequence.hold(length, source)
        for part in _parts(sequence):
            for name, node in part.nodes.items():
                shape, dtype = held_rows(node, len(part.rows))
                values = {name: arrays.array(part.prefix + name, shape, dtype)}
                write_rows(sequence.room.runner.state, part.rows, values)
        sequence.was_computed(True)


class _SequenceArrays:
    """See `ArraySource`."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def array(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | str) -> Array:
        return self._arrays[name]


def copy_sequence(sequence: Pinned, target: Pinned) -> None:
    """Have an empty sequence, of no fewer tokens, hold what another one holds."""
    source = sequence.request.source[: sequence.n_source]
    fill_sequence(target, _SequenceArrays(sequence_arrays(sequence)), sequence.n_computed, source)


def array_names(sequence: Pinned) -> set[str]:
    """The names of what `sequence_arrays` returns."""
    return {part.prefix + name for part in _parts(sequence) for name in part.nodes}


def _parts(sequence: Pinned) -> Iterator[_Part]:
    runner = sequence.room.runner
    nodes, names = runner.leaves, runner.names
    yield _Part(CELLS, {name: nodes[name] for name in names.cells}, sequence.cells(0, sequence.n_computed))
    for group in runner.executor.cell_groups:
        windowed = {name: nodes[name] for name in names.windows[group.symbol]}
        yield _Part(WINDOWS, windowed, sequence.seen_cells(group))
    if runner.executor.encodes:
        read = {name: nodes[name] for name in nodes if name in runner.of_source}
        yield _Part(SOURCE, read, sequence.cells(0, sequence.n_source))
    rows = np.array([sequence.slot] if sequence.n_computed else [], np.int32)
    yield _Part(SEQUENCE, {name: nodes[name] for name in names.sequences}, rows)
