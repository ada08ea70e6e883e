"""Copies of rows of a state: on the device where it copies there, else in NumPy arrays.

Knows arrays by their first dimension; nothing of what a row is, or when it is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphml.backend import CopyingState, RowCopies, State
from graphml.ir.op import Array


def row_copies(state: State, names: Sequence[str], count: int) -> RowCopies:
    """Memory for `count` copies of a row of each of some arrays; no step may run while one is made."""
    if isinstance(state, CopyingState):
        return state.row_copies(names, count)
    return _HostCopies(state, names, count)


class _HostCopies:
    """See `graphml.backend.RowCopies`; pages are taken as copies are kept."""

    def __init__(self, state: State, names: Sequence[str], count: int) -> None:
        self._state = state
        arrays = {name: state.array(name) for name in names}
        self._copies = {
            name: np.empty((count, *array.shape[1:]), array.dtype) for name, array in arrays.items()
        }

    def keep(self, row: int, at: int) -> None:
        for name, copies in self._copies.items():
            copies[at] = self._state.array(name)[row]

    def restore(self, at: int, row: int) -> None:
        for name, copies in self._copies.items():
            self._state.array(name)[row] = copies[at]

    def read(self, at: int) -> dict[str, Array]:
        return {name: copies[at].copy() for name, copies in self._copies.items()}

    def write(self, at: int, rows: Mapping[str, Array]) -> None:
        for name, copies in self._copies.items():
            copies[at] = rows[name]
