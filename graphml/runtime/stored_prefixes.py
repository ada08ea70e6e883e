"""Prefixes on disk for an engine: evicted blocks go to a store, and come back where a prompt wants them.

A waiting sequence whose next blocks are in the store is held back until they are in free blocks of the pool,
where the scheduler finds them like any others. So nothing hangs on a file: what cannot be read is computed.
Called by the engine's thread between two steps, which reads and writes cells; files are the store's thread's.

Knows pools, sequences and cells of blocks; nothing of files, or of how a step is computed.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.block_pool import Content, Prefix
from graphml.runtime.block_store import BlockStore, Rows
from graphml.runtime.scheduler import Scheduler
from graphml.runtime.sequence import Sequence as RunningSequence

LOG = logging.getLogger(__name__)
AT_ONCE = 16
"""Blocks that are copied between two steps, and prompts that are looked up."""


class Cells(Protocol):
    """Whose cells blocks are of; see `Runner`."""

    def read_blocks(self, blocks: list[int]) -> list[dict[str, Array]]:
        """For each block the rows of its cells by name; the caller's own."""

    def write_block(self, block: int, rows: Mapping[str, Array]) -> None:
        """Write the rows of a block's cells."""


@dataclass(eq=False)
class _Load:
    """Blocks on their way for a sequence: those that are left, and the prefix that the next one follows."""

    sequence: RunningSequence
    prefix: Prefix
    contents: deque[Content]
    n_asked: int = 0


class StoredPrefixes:
    """Moves blocks between a scheduler's pool and a store. woken: called, by any thread, when blocks came."""

    def __init__(
        self, scheduler: Scheduler, cells: Cells, store: BlockStore, woken: Callable[[], None]
    ) -> None:
        self._scheduler, self._pool, self._cells, self._store = scheduler, scheduler.pool, cells, store
        self._woken = woken
        self._pool.evicted = []
        scheduler.held_back = self._holds_back
        self._checked: weakref.WeakKeyDictionary[RunningSequence, int] = weakref.WeakKeyDictionary()
        self._load: _Load | None = None
        self._arrived: deque[list[Rows]] = deque()
        self._failed = False

    def load(self) -> None:
        """Take blocks that came, and ask for those that waiting sequences want; before a step is planned."""
        with self._goes_on_without():
            if self._load is not None and self._arrived:
                self._take(self._load, self._arrived.popleft())
            looked_up = 0
            has_slot = self._scheduler.has_slot and not self._failed
            for sequence in self._scheduler.waiting_in_order() if has_slot else ():
                if looked_up < AT_ONCE and self._holds_back(sequence):
                    self._look_up(sequence)
                    looked_up += 1

    def save(self) -> None:
        """Copy what was evicted to the store, after a step was planned and before it is computed."""
        with self._goes_on_without():
            evicted = self._pool.evicted
            if evicted:
                self._pool.evicted = []
                self._write(evicted, wait=False)

    def close(self, keep: bool = True) -> None:
        """End the store's thread; keep: blocks that are not in the store yet are written first."""
        with self._goes_on_without():
            kept = self._pool.kept()[-self._store.n_blocks :] if keep else []
            for first in range(0, len(kept), AT_ONCE):
                self._write(kept[first : first + AT_ONCE], wait=True)
        self._store.close()

    @contextmanager
    def _goes_on_without(self) -> Iterator[None]:
        """An error within ends the use of the store, and nothing else."""
        try:
            yield
        except Exception:
            LOG.warning("store: blocks cannot be copied; the engine goes on without it", exc_info=True)
            self._failed, self._load, self._pool.evicted = True, None, None

    def _holds_back(self, sequence: RunningSequence) -> bool:
        """Until it was looked up and all is loaded that there is; again after it was preempted."""
        return not self._failed and self._checked.get(sequence) != sequence.n_preempted

    def _let_run(self, sequence: RunningSequence) -> None:
        self._checked[sequence] = sequence.n_preempted

    def _look_up(self, sequence: RunningSequence) -> None:
        """Begin to load what continues the blocks that hold its first ids, for one sequence at a time."""
        if self._load is not None and self._load.sequence is sequence:
            return
        ids = np.array(sequence.ids[:-1], np.int32)
        blocks, prefixes = self._pool.match(ids, sequence.prefix)
        prefix = prefixes[-1] if prefixes else sequence.prefix
        room = self._pool.n_free - sum(not self._pool.is_held(block) for block in blocks)
        following = self._pool.following(ids[len(blocks) * self._pool.block_size :], prefix)
        contents = deque(itertools.islice(itertools.takewhile(self._store.has, following), max(0, room)))
        if not contents:
            self._let_run(sequence)
        elif self._load is None:
            self._pool.share(blocks)  # and so make them the last to be evicted
            self._pool.release(blocks)
            self._load = _Load(sequence, prefix, contents)
            self._ask(self._load)

    def _ask(self, load: _Load) -> None:
        contents = list(itertools.islice(load.contents, AT_ONCE))
        load.n_asked = len(contents)

        def arrived(found: list[Rows]) -> None:
            self._arrived.append(found)
            self._woken()

        self._store.read(contents, arrived)

    def _take(self, load: _Load, found: list[Rows]) -> None:
        """Write blocks that came to free ones of the pool, where they may be found and evicted like any."""
        complete = len(found) == load.n_asked
        contents = [load.contents.popleft() for _ in found]
        blocks = self._pool.allocate(len(found))
        if blocks is not None:
            self._copy(load, blocks, contents, found)
        if blocks is not None and complete and load.contents and load.sequence.waits:
            self._ask(load)
            return
        self._load = None
        self._let_run(load.sequence)

    def _copy(self, load: _Load, blocks: list[int], contents: list[Content], found: list[Rows]) -> None:
        try:
            self.save()  # what these blocks held
            for block, content, rows in zip(blocks, contents, found, strict=True):
                self._cells.write_block(block, rows)
                ids = np.frombuffer(content.tokens, np.int32)
                load.prefix = self._pool.commit(block, load.prefix, ids)
        finally:
            self._pool.release(blocks)

    def _write(self, some: Sequence[tuple[int, Content]], wait: bool) -> None:
        wanted = [(block, content) for block, content in some if self._store.wants(content)]
        for _, content in some:
            if self._store.has(content):
                self._store.used(content)
        rows = self._cells.read_blocks([block for block, _ in wanted]) if wanted else []
        for (_, content), of_block in zip(wanted, rows, strict=True):
            self._store.write(content, of_block, wait)
