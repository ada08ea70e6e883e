"""Blocks of a prefix taken out of an engine's pool, and put into one, between its steps.

Knows pools, cells and loops; nothing of files or of what ids mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.block_pool import CELLS, Prefix
from graphml.runtime.step_loop import StepLoop
from graphml.runtime.stored_prefixes import AT_ONCE, Cells

Rows = Mapping[str, Array]


class MovedPrefix:
    """Reads, writes and forgets the blocks of a prefix, a few at a time, so that no step waits long."""

    def __init__(self, loop: StepLoop, cells: Cells) -> None:
        self._loop, self._pool, self._cells = loop, loop.scheduler.pool, cells

    def read(self, ids: Array, prefix: Prefix) -> list[Rows]:
        """The rows of the blocks that hold the first of `ids` after `prefix`, as far as they are there."""
        blocks = self._loop.between_steps(partial(self._hold, ids, prefix))[0]
        found: list[Rows] = []
        try:
            for first in range(0, len(blocks), AT_ONCE):
                some = blocks[first : first + AT_ONCE]
                found += self._loop.between_steps(partial(self._cells.read, CELLS, some))
        finally:
            self._loop.between_steps(partial(self._pool.release, blocks))
        return found

    def write(self, ids: Array, prefix: Prefix, rows: Sequence[Rows]) -> int:
        """Put blocks of `ids` after `prefix` where later prompts find them; how many are there then.

        Those that are there already are not written. Fewer where no more blocks are free.
        """
        held, last = self._loop.between_steps(partial(self._hold, ids, prefix))
        try:
            while len(held) < len(rows):
                more, last = self._loop.between_steps(partial(self._fill, ids, last, rows, len(held)))
                if not more:
                    break
                held += more
        finally:
            self._loop.between_steps(partial(self._pool.release, held))
        return len(held)

    def forget(self, ids: Array, prefix: Prefix) -> int:
        """Give up the blocks that hold the first of `ids`, but for those that run; how many."""

        def forget() -> int:
            free = [one for one in self._pool.match(ids, prefix)[0] if not self._pool.is_held(one)]
            for block in free:
                self._pool.forget(block)
            return len(free)

        return self._loop.between_steps(forget)

    def _hold(self, ids: Array, prefix: Prefix) -> tuple[list[int], Prefix]:
        blocks, prefixes = self._pool.match(ids, prefix)
        self._pool.share(blocks)
        return blocks, prefixes[-1] if prefixes else prefix

    def _fill(self, ids: Array, prefix: Prefix, rows: Sequence[Rows], done: int) -> tuple[list[int], Prefix]:
        """Write the next blocks behind the first `done`; those blocks, held, and the prefix that they end."""
        blocks = self._pool.allocate(min(AT_ONCE, len(rows) - done, self._pool.n_free)) or []
        try:
            if self._loop.prefixes is not None:
                self._loop.prefixes.save()  # what these blocks held
            for at, block in enumerate(blocks, done):
                self._cells.write(CELLS, block, rows[at])
                size = self._pool.block_size
                prefix = self._pool.commit(
                    block, prefix, np.asarray(ids[at * size : (at + 1) * size], np.int32)
                )
        except BaseException:
            self._pool.release(blocks)
            raise
        return blocks, prefix
