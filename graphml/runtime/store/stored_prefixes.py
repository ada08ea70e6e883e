"""Prefixes on disk for an engine: what is evicted goes to a store, and comes back where a prompt wants it.

Blocks of cells, windows and source texts, and copies of recurrent states, are each a part of its own. A
waiting sequence whose prefix the store can make longer is held back until its parts are in memory, where the
scheduler finds them like any others. So nothing hangs on a file: what cannot be read is computed.
Called by the engine's thread between two steps, which reads and writes cells; files are the store's thread's.

Knows pools, sequences and parts; nothing of files, or of how a step is computed.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import CELLS, ContentPart, Prefix
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Sequence as RunningSequence
from graphml.runtime.blocks.source_blocks import SOURCE
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.checkpoints import STATES, Checkpoint
from graphml.runtime.store.block_store import BlockStore, Rows
from graphml.runtime.store.part_writes import AT_ONCE, PartCells, PartWrites
from graphml.runtime.store.wanted_parts import WantedPart, wanted_parts

LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _Load:
    """Parts on their way for a sequence: those that are left. prefix: what its next block follows."""

    sequence: RunningSequence
    prefix: Prefix
    source_prefix: Prefix
    left: deque[WantedPart]
    n_asked: int = 0


class StoredPrefixes:
    """Moves parts between a scheduler's pools and a store. woken: called, by any thread, when parts came."""

    def __init__(
        self, scheduler: Scheduler, cells: PartCells, store: BlockStore, woken: Callable[[], None]
    ) -> None:
        self._scheduler, self._pool, self._cells, self._store = scheduler, scheduler.pool, cells, store
        self._woken, self._has_cells = woken, store.stores(CELLS)
        self._writes = PartWrites(scheduler, cells, self.save)
        self._note_evicted()
        scheduler.admission.held_back = self._holds_back
        self._checked: weakref.WeakKeyDictionary[RunningSequence, int] = weakref.WeakKeyDictionary()
        self._load: _Load | None = None
        self._behind: weakref.WeakSet[RunningSequence] = weakref.WeakSet()  # which want parts after the load
        self._arrived: deque[list[Rows]] = deque()
        self._failed = False

    def load(self) -> None:
        """Take parts that came, and ask for those that waiting sequences want; before a step is planned."""
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
            evicted = self._evicted()
            if evicted:
                self._note_evicted()
                self._write(evicted, wait=False)

    def forget(self, ids: Array, extra: bytes) -> None:
        """Remove what the store has of some ids, and do not write what was evicted since `save`."""
        with self._goes_on_without():
            contents = list(self._pool.following(ids, Prefix.empty(extra)))
            self._note_evicted()
            self._store.forget(
                ContentPart(kind, content) for kind in self._store.kinds for content in contents
            )

    def close(self, keep: bool = True) -> None:
        """End the store's thread; keep: parts that are not in the store yet are written first."""
        with self._goes_on_without():
            kept = self._kept() if keep else []
            for first in range(0, len(kept), AT_ONCE):
                self._write(kept[first : first + AT_ONCE], wait=True)
        self._store.close()

    @property
    def _pools(self) -> tuple[BlockPool, BlockPool]:
        return self._pool, self._scheduler.sources.pool

    def _note_evicted(self, note: bool = True) -> None:
        """From now on evicted parts are noted, or not any more."""
        for pool in self._pools:
            pool.evicted = [] if note else None
        if self._scheduler.checkpoints is not None:
            self._scheduler.checkpoints.evicted = [] if note else None

    def _evicted(self) -> list[tuple[int, ContentPart]]:
        checkpoints = self._scheduler.checkpoints
        states = [] if checkpoints is None else checkpoints.evicted or []
        evicted = [entry for pool in self._pools for entry in pool.evicted or ()]
        return evicted + [self._of(checkpoint) for checkpoint in states]

    def _kept(self) -> list[tuple[int, ContentPart]]:
        """What is in memory, the latest of it that the store has room for, in the order of eviction."""
        checkpoints = self._scheduler.checkpoints
        every = [entry for pool in self._pools for entry in pool.kept()]
        every += [] if checkpoints is None else [self._of(checkpoint) for checkpoint in checkpoints.kept()]
        sizes = itertools.accumulate(self._store.part_bytes(part.kind) for _, part in reversed(every))
        count = sum(size <= self._store.max_bytes for size in sizes)
        return every[len(every) - count :]

    def _of(self, checkpoint: Checkpoint) -> tuple[int, ContentPart]:
        """A checkpoint as a part: of the last block of its ids."""
        ids = np.frombuffer(checkpoint.ids, np.int32)
        (last,) = deque(self._pool.following(ids, Prefix.empty(checkpoint.extra)), maxlen=1)
        return checkpoint.at, ContentPart(STATES, last)

    @contextmanager
    def _goes_on_without(self) -> Iterator[None]:
        """An error within ends the use of the store, and nothing else."""
        try:
            yield
        except Exception:
            LOG.warning("store: blocks cannot be copied; the engine goes on without it", exc_info=True)
            self._failed, self._load = True, None
            self._note_evicted(False)

    def _holds_back(self, sequence: RunningSequence) -> bool:
        """Until it was looked up and all is loaded that there is; again after it was preempted."""
        return not self._failed and self._checked.get(sequence) != sequence.n_preempted

    def _let_run(self, sequence: RunningSequence) -> None:
        self._checked[sequence] = sequence.n_preempted

    def _look_up(self, sequence: RunningSequence) -> None:
        """Begin to load what makes a sequence's prefix longer, for one sequence at a time."""
        if self._load is not None and (self._load.sequence is sequence or sequence in self._behind):
            return
        wanted = wanted_parts(self._scheduler, sequence, self._store.has, self._has_cells)
        if not wanted:
            self._let_run(sequence)
        elif self._load is None:
            ids = np.array(sequence.ids[:-1], np.int32)
            blocks, prefixes = self._pool.longest(ids, sequence.prefix)
            self._pool.share(blocks)  # and so make them the last to be evicted
            self._pool.release(blocks)
            prefix = prefixes[-1] if prefixes else sequence.prefix
            self._load = _Load(sequence, prefix, Prefix.empty(sequence.request.extra), deque(wanted))
            self._ask(self._load)
        else:
            self._behind.add(sequence)

    def _ask(self, load: _Load) -> None:
        parts = [wanted.part for wanted in itertools.islice(load.left, AT_ONCE)]
        load.n_asked = len(parts)

        def arrived(rows: list[Rows]) -> None:
            self._arrived.append(rows)
            self._woken()

        self._store.read(parts, arrived)

    def _take(self, load: _Load, arrived: list[Rows]) -> None:
        """Have parts that came where they may be found and evicted like any."""
        fits = len(arrived) == load.n_asked
        come = [(load.left.popleft(), rows) for rows in arrived]
        for kind, some in itertools.groupby(come, lambda pair: pair[0].part.kind):
            fits = self._put(load, kind, list(some)) and fits
        if fits and load.left and load.sequence.waits:
            self._ask(load)
            return
        self._load = None
        self._let_run(load.sequence)

    def _put(self, load: _Load, kind: str, some: list[tuple[WantedPart, Rows]]) -> bool:
        """Write parts of a kind; whether there was room for all of them."""
        if kind == CELLS:
            load.prefix, fits = self._put_blocks(self._pool, load.prefix, some)
            return fits
        if kind == SOURCE:
            pool = self._scheduler.sources.pool
            load.source_prefix, fits = self._put_blocks(pool, load.source_prefix, some)
            return fits
        put = self._put_states if kind == STATES else self._put_window
        return all(put(load.sequence, wanted, rows) for wanted, rows in some)

    def _put_blocks(
        self, pool: BlockPool, prefix: Prefix, some: list[tuple[WantedPart, Rows]]
    ) -> tuple[Prefix, bool]:
        """Write blocks behind a prefix; the prefix that they end, and whether so many were free."""
        blocks = pool.allocate(len(some), with_windows=False)
        if blocks is None:
            return prefix, False
        try:
            self.save()  # what these blocks held
            for block, (wanted, rows) in zip(blocks, some, strict=True):
                self._cells.write(pool.kind, block, rows)
                prefix = pool.commit(block, prefix, np.frombuffer(wanted.part.content.tokens, np.int32))
        finally:
            pool.release(blocks)
        return prefix, True

    def _put_window(self, sequence: RunningSequence, wanted: WantedPart, rows: Rows) -> bool:
        """Write a window's block for a block of the pool, if that is there still."""
        window = next(window for window in self._pool.windows if window.group.name == wanted.part.kind)
        held = self._pool.held(np.array(sequence.ids[:-1], np.int32), sequence.prefix)
        return self._writes.put_window(window, held, wanted.index, rows)

    def _put_states(self, sequence: RunningSequence, wanted: WantedPart, rows: Rows) -> bool:
        """Have a checkpoint of the sequence's first ids."""
        n = (wanted.index + 1) * self._pool.block_size
        return self._writes.put_states(np.array(sequence.ids[:n], np.int32), sequence.request.extra, rows)

    def _write(self, some: list[tuple[int, ContentPart]], wait: bool) -> None:
        wanted: dict[str, list[tuple[int, ContentPart]]] = {}
        for number, part in some:
            if self._store.has(part):
                self._store.used(part)
            elif self._store.wants(part):
                wanted.setdefault(part.kind, []).append((number, part))
        for kind, parts in wanted.items():
            rows = self._cells.read(kind, [number for number, _ in parts])
            for (_, part), of_part in zip(parts, rows, strict=True):
                self._store.write(part, of_part, wait)
