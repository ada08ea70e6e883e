"""The thread of a prefix store: reads and writes blocks beside the engine's steps, reads first.

Its queue is bounded: where the disk is slower than the engine, evicted blocks are dropped. Each kind of
error of a file or the disk is logged once, and the engine computes.

Knows queues and `BlockFiles`; nothing of steps or of which sequence needs a block.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import ContentPart
from graphml.runtime.store.block_files import BlockFiles

LOG = logging.getLogger(__name__)
MAX_WAITING_BYTES = 64 << 20
Rows = dict[str, Array]
FORGOTTEN: Final[Rows] = {}
"""In place of rows: the part is removed."""


class BlockStore:
    """Blocks on disk, read and written by a thread of its own, which `close` ends.

    max_waiting: most bytes that wait to be written.
    """

    def __init__(self, files: BlockFiles, max_waiting: int = MAX_WAITING_BYTES) -> None:
        self._files, self._max_waiting = files, max_waiting
        self._changed = threading.Condition()
        self._reads: deque[tuple[Sequence[ContentPart], Callable[[list[Rows]], None]]] = deque()
        self._writes: deque[tuple[ContentPart, Rows | None]] = deque()
        self._forgotten: Counter[tuple[str, bytes]] = Counter()
        self._waiting_bytes = 0
        self._waiting: set[tuple[str, bytes]] = set()
        self._closing = False
        self._writable = True
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None
        self.n_dropped = 0

    @property
    def max_bytes(self) -> int:
        """How much it has room for."""
        return self._files.max_bytes

    def part_bytes(self, kind: str) -> int:
        """The size of a part of a kind."""
        return self._files.part_bytes(kind)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of parts that are stored."""
        return self._files.kinds

    def stores(self, kind: str) -> bool:
        """Whether parts of a kind are stored."""
        return self._files.stores(kind)

    def has(self, part: ContentPart) -> bool:
        """Whether such a part for tokens of that hash may be read."""
        return self._files.has(part) and not self._forgotten[_key(part)]

    def wants(self, part: ContentPart) -> bool:
        """Whether `write` would write this part."""
        known = _key(part) in self._waiting or self.has(part)
        return self._writable and self._files.stores(part.kind) and not known

    def read(self, parts: Sequence[ContentPart], arrived: Callable[[list[Rows]], None]) -> None:
        """Read blocks in order; `arrived` gets the rows of the first ones, up to one that cannot be read.

        It is called by the store's thread.
        """
        with self._changed:
            self._reads.append((parts, arrived))
            self._begin()

    def write(self, part: ContentPart, rows: Mapping[str, Array], wait: bool = False) -> None:
        """Write a block soon; it is dropped where too much waits already, or that is waited for."""
        size = sum(array.nbytes for array in rows.values())
        with self._changed:
            while wait and self._waiting_bytes and self._waiting_bytes + size > self._max_waiting:
                self._changed.wait()
            if self._waiting_bytes and self._waiting_bytes + size > self._max_waiting:
                self.n_dropped += 1
                return
            self._writes.append((part, dict(rows)))
            self._waiting.add(_key(part))
            self._waiting_bytes += size
            self._begin()

    def used(self, part: ContentPart) -> None:
        """A block that is on disk was used: it is kept longer."""
        with self._changed:
            self._writes.append((part, None))
            self._begin()

    def forget(self, parts: Iterable[ContentPart]) -> None:
        """Remove parts; they are found no more, from now on."""
        with self._changed:
            for part in parts:
                key = _key(part)
                if key in self._waiting or self._files.has(part):
                    self._waiting.discard(key)  # the same may be written again, behind this
                    self._forgotten[key] += 1
                    self._writes.append((part, FORGOTTEN))
                    self._begin()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._reads.clear()
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _begin(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="graphml-store", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._reads or self._writes or self._closing):
                    self._changed.wait()
                if not (self._reads or self._writes):
                    return
                reading = self._reads.popleft() if self._reads else None
                writing = self._writes.popleft() if reading is None else None
            if reading is not None:
                parts, arrived = reading
                arrived(self._read(parts))
            elif writing is not None:
                self._write(*writing)

    def _read(self, parts: Sequence[ContentPart]) -> list[Rows]:
        all_rows: list[Rows] = []
        for part in parts:
            try:
                rows = self._files.read(part)
            except Exception as error:
                self._tell("a block is damaged, and computed again", error)
                break
            if rows is None:
                break
            all_rows.append(rows)
        for part in reversed(parts[: len(all_rows)]):  # what precedes others is removed after them
            self._files.used(part)
        return all_rows

    def _write(self, part: ContentPart, rows: Rows | None) -> None:
        try:
            if rows is None:
                self._files.used(part)
            elif rows is FORGOTTEN:
                self._files.remove(part)
            elif self._writable:
                self._files.write(part, rows)
        except Exception as error:
            self._writable = False
            self._tell("cannot be written, and keeps what it has", error)
        if rows is None:
            return
        with self._changed:
            if rows is FORGOTTEN:
                self._forgotten -= Counter([_key(part)])
                return
            self._waiting.discard(_key(part))
            self._waiting_bytes -= sum(array.nbytes for array in rows.values())
            self._changed.notify_all()

    def _tell(self, what: str, error: Exception) -> None:
        """Log each kind of error once."""
        if what not in self._told:
            self._told.add(what)
            text = str(error) if isinstance(error, UsageError) else f"{error!r}"
            LOG.warning("store %s: %s: %s", self._files.folder, what, text)


def _key(part: ContentPart) -> tuple[str, bytes]:
    """What two parts of one file have in common."""
    return part.kind, part.content.prefix.digest
