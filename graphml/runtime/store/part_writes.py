"""Parts written behind a prefix: a window's block for a block of the pool, states as a checkpoint.

Knows pools, checkpoints and cells; nothing of where the rows come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from graphml.ir.op import Array
from graphml.runtime.blocks.window_blocks import NONE, WindowBlocks
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.checkpoints import STATES

AT_ONCE = 16
"""Parts that are copied between two steps, and prompts that are looked up."""


class PartCells(Protocol):
    """Whose cells and states parts are of; see `StateParts`. A part's number is that of its block or copy."""

    def read(self, kind: str, numbers: list[int]) -> list[dict[str, Array]]:
        """The rows of some parts of a kind by name; the caller's own."""

    def write(self, kind: str, number: int, rows: Mapping[str, Array]) -> None:
        """Write the rows of a part."""


class PartWrites:
    """Writes windows and states of a prefix into an engine's blocks and checkpoints.

    save: called before something is overwritten, for what is to outlast that.
    """

    def __init__(self, scheduler: Scheduler, cells: PartCells, save: Callable[[], None]) -> None:
        self._pool, self._checkpoints = scheduler.pool, scheduler.checkpoints
        self._cells, self._save = cells, save

    def put_window(
        self, window: WindowBlocks, held: list[int], index: int, rows: Mapping[str, Array]
    ) -> bool:
        """Write a window's block for block `held[index]`, unless that is gone or has one; whether it did."""
        if index >= len(held) or window.of[held[index]] != NONE or not window.n_free:
            return False
        number = self._pool.put_window(window, held[index])
        try:
            self._save()
            self._cells.write(window.group.name, number, rows)
        except BaseException:
            window.forget(held[index])
            raise
        return True

    def put_states(self, ids: Array, extra: bytes, rows: Mapping[str, Array]) -> bool:
        """Have a checkpoint after `ids`, where there is a place for it; whether there was."""
        at = None if self._checkpoints is None else self._checkpoints.reserve()
        if self._checkpoints is None or at is None:
            return False
        try:
            self._save()
            self._cells.write(STATES, at, rows)
        except BaseException:
            self._checkpoints.put_back(at)
            raise
        self._checkpoints.put(at, ids, extra)
        return True
