"""What an engine keeps of a prefix, taken out of its pools and put into others, between its steps.

That is the cells of its blocks; of layers that see a window those of the last blocks; of recurrent models
their states after the last id. Knows pools, cells, copies and loops; nothing of files or of what ids mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import CELLS, Prefix
from graphml.runtime.blocks.window_blocks import WindowBlocks
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.plans.checkpoints import STATES
from graphml.runtime.steps.state_parts import StateParts, block_cells
from graphml.runtime.store.part_writes import AT_ONCE, PartWrites

Rows: TypeAlias = Mapping[str, Array]
Parts: TypeAlias = Mapping[str, Rows]
"""By kind, rows of a prefix: cells of its ids; of windows, its last blocks; states after its last id."""


class _PrefixBlocks(NamedTuple):
    """Blocks that hold the first `n_ids` of some ids, the last maybe partly; prefix: of the full ones.

    states: where the states behind them are, if the model has any.
    """

    blocks: list[int]
    prefix: Prefix
    n_ids: int
    states: int | None = None


class MovedPrefix:
    """Reads, writes and forgets the parts of a prefix, a few at a time, so that no step waits long.

    extra, in calls: what besides ids decides about them, as of `Request.extra`.
    """

    def __init__(self, loop: StepLoop, cells: StateParts) -> None:
        self._loop, self._pool, self._cells = loop, loop.scheduler.pool, cells
        self._checkpoints = loop.scheduler.checkpoints if STATES in cells.rows else None
        self._has_cells = CELLS in cells.rows
        self._writes = PartWrites(loop.scheduler, cells, self._save)

    def window_cells(self, n_ids: int) -> dict[str, int]:
        """By the name of each window's group, the cells that a prefix of so many ids, whole blocks, has."""
        size = self._pool.block_size
        return {window.group.name: n_ids - window.first_block(n_ids) * size for window in self._pool.windows}

    def read(self, ids: Array, extra: bytes) -> tuple[int, Parts]:
        """How many of the first of `ids` a prompt could go on from, and their parts."""
        held, states = self._loop.between_steps(partial(self._begin_read, ids, extra))
        parts = {} if states is None else {STATES: states}
        try:
            if self._has_cells:
                cells = self._read(CELLS, held.blocks)
                parts[CELLS] = {name: rows[: held.n_ids] for name, rows in cells.items()}
            for window in self._pool.windows:
                last = [int(window.of[block]) for block in held.blocks[window.first_block(held.n_ids) :]]
                parts[window.group.name] = self._read(window.group.name, last)
        finally:
            self._loop.between_steps(partial(self._let_go, held))
        return held.n_ids, parts

    def write(self, ids: Array, extra: bytes, parts: Parts) -> int:
        """Put the parts of `ids` where later prompts find them; how many ids a prompt can go on from then.

        Those that are there already are not written. Fewer where no more blocks are free.
        """
        if self._has_cells:
            self._write_blocks(ids, Prefix.empty(extra), parts)
        if STATES in parts:
            self._loop.between_steps(partial(self._put_states, ids, extra, parts[STATES]))

        def found() -> int:
            return self._found(ids, extra).n_ids

        return self._loop.between_steps(found)

    def forget(self, ids: Array, extra: bytes) -> int:
        """Give up the parts of the first of `ids`, but for blocks that run, here and in the store."""

        def forget() -> int:
            self._save()
            pool, prefix = self._pool, Prefix.empty(extra)
            n_states = 0 if self._checkpoints is None else self._checkpoints.forget(ids, extra)
            whole, prefixes = pool.longest(ids, prefix)
            begun = pool.begun_within(ids[len(whole) * pool.block_size :], prefixes[-1] if whole else prefix)
            counts = dict.fromkeys(whole, pool.block_size) | {
                begun_block.block: begun_block.count for begun_block in begun
            }
            free = [block for block in counts if not pool.is_held(block)]
            for block in free:
                pool.forget(block)
            if self._loop.prefixes is not None:
                self._loop.prefixes.forget(ids, extra)
            return sum(counts[block] for block in free) if self._has_cells else n_states

        return self._loop.between_steps(forget)

    def _found(self, ids: Array, extra: bytes) -> _PrefixBlocks:
        """What a prompt that begins with `ids` could go on from; nothing is held yet."""
        pool, prefix = self._pool, Prefix.empty(extra)
        if self._checkpoints is not None:
            checkpoint = self._checkpoints.longest(ids, extra, prefix, pool)
            n, at = (0, None) if checkpoint is None else (checkpoint.n, checkpoint.at)
            blocks = pool.match(ids[:n], prefix)[0] if self._has_cells else []
            return _PrefixBlocks(blocks, prefix, n, at)
        return self._with_begun(*pool.match(ids, prefix), ids, prefix)

    def _with_begun(
        self, blocks: list[int], prefixes: list[Prefix], ids: Array, prefix: Prefix
    ) -> _PrefixBlocks:
        held = _PrefixBlocks(
            blocks, prefixes[-1] if prefixes else prefix, len(blocks) * self._pool.block_size
        )
        begun = self._pool.begun(ids[held.n_ids :], held.prefix)
        if begun is None:
            return held
        return _PrefixBlocks([*blocks, begun.block], held.prefix, held.n_ids + begun.count)

    def _begin_read(self, ids: Array, extra: bytes) -> tuple[_PrefixBlocks, Rows | None]:
        """Hold what is found, so that it stays; states are copied at once, as nobody can hold them."""
        held, states = self._found(ids, extra), None
        if held.states is not None:
            (states,) = self._cells.read(STATES, [held.states])
        self._pool.share(held.blocks)
        for window in self._pool.windows:
            window.hold(held.blocks)
        return held, states

    def _let_go(self, held: _PrefixBlocks) -> None:
        for window in self._pool.windows:
            window.release(held.blocks, held.n_ids)
        self._pool.release(held.blocks)

    def _read(self, kind: str, numbers: list[int]) -> dict[str, Array]:
        """The rows of blocks, one behind the other."""
        some = [
            block_cells(numbers[first : first + AT_ONCE]) for first in range(0, len(numbers) or 1, AT_ONCE)
        ]
        rows = [self._loop.between_steps(partial(self._cells.read_rows, kind, cells)) for cells in some]
        return {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}

    def _write_blocks(self, ids: Array, prefix: Prefix, parts: Parts) -> None:
        """Write the blocks that are missing, and those of windows for the last ones."""
        held = self._loop.between_steps(partial(self._hold_known, ids, prefix))
        size, blocks, last, count = self._pool.block_size, held.blocks, held.prefix, held.n_ids
        try:
            while count < len(ids):
                done = count // size
                more, last = self._loop.between_steps(partial(self._fill, ids, last, parts[CELLS], done))
                if not more:
                    break
                blocks = [*blocks, *more]
                count = min((done + len(more)) * size, len(ids))
            for window in self._pool.windows:
                for first in range(window.first_block(len(ids)), len(ids) // size, AT_ONCE):
                    put = partial(self._put_window, window, ids, prefix, parts[window.group.name], first)
                    self._loop.between_steps(put)
        finally:
            self._loop.between_steps(partial(self._pool.release, blocks))

    def _hold_known(self, ids: Array, prefix: Prefix) -> _PrefixBlocks:
        """Hold the blocks that are there, with windows or without."""
        held = self._with_begun(*self._pool.longest(ids, prefix), ids, prefix)
        self._pool.share(held.blocks)
        return held

    def _fill(self, ids: Array, prefix: Prefix, rows: Rows, done: int) -> tuple[list[int], Prefix]:
        """Write the next blocks behind the first `done`; those blocks, held, and the prefix that they end."""
        size = self._pool.block_size
        count = min(AT_ONCE, -(-len(ids) // size) - done, self._pool.n_free)
        blocks = self._pool.allocate(count, with_windows=False) or []
        try:
            self._save()
            for at, block in enumerate(blocks, done):
                self._cells.write(CELLS, block, _block_of(rows, at, size))
                some = np.asarray(ids[at * size : (at + 1) * size], np.int32)
                if len(some) < size:
                    self._pool.keep_begun(block, prefix, some)
                else:
                    prefix = self._pool.commit(block, prefix, some)
        except BaseException:
            self._pool.release(blocks)
            raise
        return blocks, prefix

    def _put_window(self, window: WindowBlocks, ids: Array, prefix: Prefix, rows: Rows, first: int) -> None:
        """Write a window's next blocks, from block `first` on, for those of the pool that have none."""
        held, size = self._pool.held(ids, prefix), self._pool.block_size
        begin = window.first_block(len(ids))
        for at in range(first, min(first + AT_ONCE, len(ids) // size)):
            self._writes.put_window(window, held, at, _block_of(rows, at - begin, size))

    def _put_states(self, ids: Array, extra: bytes, rows: Rows) -> None:
        """Have a checkpoint after `ids`, unless there is one."""
        if self._checkpoints is not None and not self._checkpoints.has(ids, extra):
            self._writes.put_states(ids, extra, rows)

    def _save(self) -> None:
        """What was in the place of something else goes to the store, if there is one."""
        if self._loop.prefixes is not None:
            self._loop.prefixes.save()


def _block_of(rows: Rows, at: int, size: int) -> Rows:
    """The rows of block `at` of so many cells; of the last one maybe fewer."""
    return {name: array[at * size : (at + 1) * size] for name, array in rows.items()}
