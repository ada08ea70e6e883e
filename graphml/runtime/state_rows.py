"""Rows of a state's arrays: what blocks of cells and single sequences hold, read, written and copied.

Knows arrays by their first dimension; nothing of tokens, sequences or who shares a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphml.backend import State
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import Symbol


@dataclass(frozen=True)
class StateNames:
    """cells: states with a row for each cell (keys, values); sequences: those with one for each sequence."""

    cells: tuple[str, ...]
    sequences: tuple[str, ...]


def state_names(leaves: Iterable[Node]) -> StateNames:
    """The names of state leaves, by what a row belongs to."""
    of: dict[str, list[str]] = {"C": [], "S": []}
    for node in leaves:
        rows = node.shape[0]
        of[rows.name if isinstance(rows, Symbol) else ""].append(node.name)
    return StateNames(tuple(of["C"]), tuple(of["S"]))


def read_rows(state: State, names: Iterable[str], rows: Array) -> dict[str, Array]:
    """Name -> the values of some rows, as the state holds their dtype; the caller's own."""
    return {name: state.array(name)[rows].copy() for name in names}


def write_rows(state: State, rows: Array, values: Mapping[str, Array]) -> None:
    """Write values by name into some rows; no step may run meanwhile."""
    for name, value in values.items():
        state.array(name)[rows] = value


def copy_rows(state: State, names: Iterable[str], source: Array, target: Array) -> None:
    """Copy some rows of a state to others of it; no step may run meanwhile."""
    write_rows(state, target, read_rows(state, names, source))
