"""What a slot holds, as named arrays: keys and values of the cells in use, recurrent states, an encoder's.

Of sliding-window layers these are the cells that the next token sees, from the beginning of a block on.

Knows slots, states and arrays; nothing of ids, sampling or files' formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.runtime.executor import Executor
from graphml.runtime.paged_cache import PagedCache, cells_of
from graphml.runtime.slots import Slot
from graphml.runtime.state_rows import held_rows, read_rows, state_names, write_rows

CELLS, WINDOWS, SOURCE, SEQUENCE = "cells/", "windows/", "source/", "sequence/"


class Arrays(Protocol):
    """Where arrays are read from; see `graphml.runtime.tensor_file.TensorFile`."""

    def array(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | str) -> Array:
        """An array of this shape and dtype, or an error."""


@dataclass(frozen=True)
class _Part:
    """States that are saved in the same way: their nodes, by name, and the rows that are in use."""

    prefix: str
    nodes: dict[str, Node]
    rows: Array


def slot_arrays(executor: Executor, slot: Slot, options: CompileOptions) -> dict[str, Array]:
    """All that a slot holds; the arrays are the caller's own."""
    found: dict[str, Array] = {}
    with executor.lock:
        slot.restore_states()  # a rewind has left that to the next step
        for part in _parts(executor, slot, options):
            rows = read_rows(slot.state, part.nodes, part.rows)
            found |= {part.prefix + name: array for name, array in rows.items()}
    return found


def fill_slot(
    executor: Executor, slot: Slot, options: CompileOptions, arrays: Arrays, length: int, source_length: int
) -> None:
    """Have an empty slot hold so many tokens, and so many of a source text, as arrays saved earlier say."""
    with executor.lock:  # other sequences of the cache may be running
        slot.cache.append(slot.sequence, length)
        slot.cache.forget_windows(slot.sequence)
        if slot.cache.source is not None:
            slot.cache.source.append(slot.sequence, source_length)
        for part in _parts(executor, slot, options):
            for name, node in part.nodes.items():
                shape, dtype = held_rows(node, len(part.rows))
                write_rows(slot.state, part.rows, {name: arrays.array(part.prefix + name, shape, dtype)})
        if slot.cache.states is not None:
            slot.cache.states.end([slot.sequence], slot.cache.lengths)


class _Held:
    """See `Arrays`."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def array(self, name: str, shape: tuple[int | None, ...], dtype: np.dtype[Any] | str) -> Array:
        return self._arrays[name]


def copy_slot(executor: Executor, slot: Slot, made: Slot, options: CompileOptions) -> None:
    """Have an empty slot, of no fewer tokens, hold what another one holds."""
    held = _Held(slot_arrays(executor, slot, options))
    fill_slot(executor, made, options, held, slot.length, slot.source_length)


def array_names(executor: Executor, slot: Slot, options: CompileOptions) -> set[str]:
    """The names of what `slot_arrays` returns."""
    return {part.prefix + name for part in _parts(executor, slot, options) for name in part.nodes}


def _parts(executor: Executor, slot: Slot, options: CompileOptions) -> Iterator[_Part]:
    count = slot.cache.n_program(1)
    graph = executor.programs.state_graph(count, options)
    nodes = {node.name: node for node in executor.programs.state_leaves(graph, count)}
    names = state_names(nodes.values())
    of_source = set(executor.build_encoder(1, count).leaves("state")) if executor.encodes else set()
    own = {name: nodes[name] for name in names.cells if name not in of_source}
    yield _Part(CELLS, own, _cells(slot.cache, slot.sequence))
    for group in executor.cell_groups:
        windowed = {name: nodes[name] for name in names.windows[group.symbol]}
        yield _Part(WINDOWS, windowed, slot.cache.seen_cells(slot.sequence, group))
    if slot.cache.source is not None:
        read = {name: nodes[name] for name in names.cells if name in of_source}
        yield _Part(SOURCE, read, _cells(slot.cache.source, slot.sequence))
    rows = np.array([slot.sequence] if slot.length else [], np.int32)
    yield _Part(SEQUENCE, {name: nodes[name] for name in names.sequences}, rows)


def _cells(cache: PagedCache, sequence: int) -> Array:
    positions = np.arange(cache.lengths[sequence], dtype=np.int32)
    return cells_of(cache.table[sequence], positions, cache.block_size)
