"""Rows of a state's arrays: what blocks of cells and single sequences hold, read, written and copied.

Knows arrays by their first dimension; nothing of tokens, sequences or who shares a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphml.backend import RowsState, State
from graphml.compiler.parts_program import PartsState
from graphml.ir.cell_groups import cells_dimension
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import Symbol, resolve


@dataclass(frozen=True)
class StateRow:
    """Of one array of a part: its shape, with a block's cells first, and its dtype in NumPy."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class StateNames:
    """cells: states with a row for each cell (keys, values); sequences: those with one for each sequence.

    windows: the symbol of a group of layers (`ir.cell_groups`) -> those with a row for each of its cells.
    """

    cells: tuple[str, ...]
    sequences: tuple[str, ...]
    windows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def state_names(leaves: Iterable[Node]) -> StateNames:
    """The names of state leaves, by what a row belongs to."""
    of: dict[str, tuple[str, ...]] = {"C": (), "S": ()}
    for node in leaves:
        rows = node.shape[0]
        symbol = rows.name if isinstance(rows, Symbol) else ""
        of[symbol] = (*of.get(symbol, ()), node.name)
    windows = {symbol: names for symbol, names in of.items() if cells_dimension(symbol) and symbol != "C"}
    return StateNames(of["C"], of["S"], windows)


def read_rows(state: State, names: Iterable[str], rows: Array) -> dict[str, Array]:
    """Name -> the values of some rows, as the state holds their dtype; the caller's own."""
    values: dict[str, Array] = {}
    for part, some in _by_device(state, names):
        if isinstance(part, RowsState):
            values |= part.read_rows(some, runs_of(rows))
        else:
            values |= {name: part.array(name)[rows] for name in some}
    return values


def write_rows(state: State, rows: Array, values: Mapping[str, Array]) -> None:
    """Write values by name into some rows; no step may run meanwhile."""
    for part, some in _by_device(state, values):
        if isinstance(part, RowsState):
            part.write_rows(runs_of(rows), {name: values[name] for name in some})
        else:
            for name in some:
                part.array(name)[rows] = values[name]


def copy_rows(state: State, names: Iterable[str], source: Array, target: Array) -> None:
    """Copy some rows of a state to others of it, not among them; no step may run meanwhile."""
    for part, some in _by_device(state, names):
        if isinstance(part, RowsState):
            part.copy_rows(some, _copies(source, target))
        else:
            write_rows(part, target, read_rows(part, some, source))


def held_rows(node: Node, n_rows: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of so many rows of a state, as NumPy holds them."""
    (*sizes, last) = resolve((n_rows, *node.shape[1:]), {})
    if node.dtype.numpy is not None:
        return (*sizes, last), node.dtype.numpy
    return (*sizes, node.dtype.bytes_for(last)), np.dtype(np.uint8)


def runs_of(rows: Array) -> list[tuple[int, int]]:
    """Rows as runs of consecutive ones, in their order: (first, count) each."""
    return [(first, count) for first, _, count in _copies(rows, rows)]


def _copies(source: Array, target: Array) -> list[tuple[int, int, int]]:
    """(source, target, count) of rows that are consecutive on both sides."""
    both = np.stack([source, target], axis=1)
    steps = (np.diff(both, axis=0, prepend=both[:1] - 2) != 1).any(axis=1)
    begins = np.flatnonzero(steps)
    counts = np.diff(begins, append=len(both))
    runs = zip(begins.tolist(), counts.tolist(), strict=True)
    return [(int(source[at]), int(target[at]), count) for at, count in runs]


def _by_device(state: State, names: Iterable[str]) -> Iterator[tuple[State, list[str]]]:
    """The states of single devices, each with those of the names that it holds."""
    if not isinstance(state, PartsState):
        yield state, list(names)
        return
    of: dict[str, list[str]] = {}
    for name in names:
        of.setdefault(state.homes[name], []).append(name)
    yield from ((state.states[home], some) for home, some in of.items())
