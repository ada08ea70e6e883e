"""Blocks of a prefix taken out of an engine's pool, and put into one, between its steps.

Knows pools, cells and loops; nothing of files or of what ids mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.block_content import CELLS, Prefix
from graphml.runtime.step_loop import StepLoop
from graphml.runtime.stored_prefixes import AT_ONCE, Cells

Rows = Mapping[str, Array]


class _Held(NamedTuple):
    """Blocks that hold the first `n_ids` of some ids, the last maybe partly; prefix: of the full ones."""

    blocks: list[int]
    prefix: Prefix
    n_ids: int


class MovedPrefix:
    """Reads, writes and forgets the blocks of a prefix, a few at a time, so that no step waits long."""

    def __init__(self, loop: StepLoop, cells: Cells) -> None:
        self._loop, self._pool, self._cells = loop, loop.scheduler.pool, cells

    def read(self, ids: Array, prefix: Prefix) -> tuple[list[Rows], int]:
        """The rows of the blocks that hold the first of `ids` after `prefix`, and how many ids those are.

        What the last block holds behind them is of others.
        """
        held = self._loop.between_steps(partial(self._hold, ids, prefix))
        found: list[Rows] = []
        try:
            for first in range(0, len(held.blocks), AT_ONCE):
                some = held.blocks[first : first + AT_ONCE]
                found += self._loop.between_steps(partial(self._cells.read, CELLS, some))
        finally:
            self._loop.between_steps(partial(self._pool.release, held.blocks))
        return found, held.n_ids

    def write(self, ids: Array, prefix: Prefix, rows: Sequence[Rows]) -> int:
        """Put blocks of `ids` after `prefix` where later prompts find them; how many ids are there then.

        The last may be filled partly. Those that are there already are not written. Fewer where no more
        blocks are free.
        """
        held = self._loop.between_steps(partial(self._hold, ids, prefix))
        size, blocks, last, count = self._pool.block_size, held.blocks, held.prefix, held.n_ids
        try:
            while count < len(ids):
                done = count // size
                more, last = self._loop.between_steps(partial(self._fill, ids, last, rows, done))
                if not more:
                    break
                blocks = [*blocks, *more]
                count = min((done + len(more)) * size, len(ids))
        finally:
            self._loop.between_steps(partial(self._pool.release, blocks))
        return count

    def forget(self, ids: Array, prefix: Prefix) -> int:
        """Give up the blocks that hold the first of `ids`, but for those that run; how many ids."""

        def forget() -> int:
            pool = self._pool
            whole, prefixes = pool.match(ids, prefix)
            begun = pool.begun_within(ids[len(whole) * pool.block_size :], prefixes[-1] if whole else prefix)
            counts = dict.fromkeys(whole, pool.block_size) | {one.block: one.count for one in begun}
            free = [block for block in counts if not pool.is_held(block)]
            for block in free:
                pool.forget(block)
            return sum(counts[block] for block in free)

        return self._loop.between_steps(forget)

    def _hold(self, ids: Array, prefix: Prefix) -> _Held:
        pool = self._pool
        blocks, prefixes = pool.match(ids, prefix)
        found = _Held(blocks, prefixes[-1] if prefixes else prefix, len(blocks) * pool.block_size)
        begun = pool.begun(ids[found.n_ids :], found.prefix)
        if begun is not None:
            found = _Held([*blocks, begun.block], found.prefix, found.n_ids + begun.count)
        pool.share(found.blocks)
        return found

    def _fill(self, ids: Array, prefix: Prefix, rows: Sequence[Rows], done: int) -> tuple[list[int], Prefix]:
        """Write the next blocks behind the first `done`; those blocks, held, and the prefix that they end."""
        blocks = self._pool.allocate(min(AT_ONCE, len(rows) - done, self._pool.n_free)) or []
        try:
            if self._loop.prefixes is not None:
                self._loop.prefixes.save()  # what these blocks held
            for at, block in enumerate(blocks, done):
                self._cells.write(CELLS, block, rows[at])
                size = self._pool.block_size
                some = np.asarray(ids[at * size : (at + 1) * size], np.int32)
                if len(some) < size:
                    self._pool.keep_begun(block, prefix, some)
                else:
                    prefix = self._pool.commit(block, prefix, some)
        except BaseException:
            self._pool.release(blocks)
            raise
        return blocks, prefix
