"""The thread of a prefix store: reads and writes blocks beside the engine's steps, reads first.

Its queue is bounded: where the disk is slower than the engine, evicted blocks are dropped. Each kind of
error of a file or the disk is logged once, and the engine computes.

Knows queues and `BlockFiles`; nothing of steps or of which sequence needs a block.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.block_files import BlockFiles
from graphml.runtime.block_pool import Content

LOG = logging.getLogger(__name__)
MAX_WAITING_BYTES = 64 << 20
Rows = dict[str, Array]


class BlockStore:
    """Blocks on disk, read and written by a thread of its own, which `close` ends.

    max_waiting: most bytes that wait to be written.
    """

    def __init__(self, files: BlockFiles, max_waiting: int = MAX_WAITING_BYTES) -> None:
        self._files, self._max_waiting = files, max_waiting
        self._changed = threading.Condition()
        self._reads: deque[tuple[Sequence[Content], Callable[[list[Rows]], None]]] = deque()
        self._writes: deque[tuple[Content, Rows | None]] = deque()
        self._waiting_bytes = 0
        self._waiting: set[bytes] = set()
        self._closing = False
        self._writable = True
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None
        self.n_dropped = 0

    @property
    def n_blocks(self) -> int:
        """How many blocks it has room for."""
        return self._files.max_bytes // self._files.block_bytes

    def has(self, content: Content) -> bool:
        """Whether a block of that hash may be read."""
        return self._files.has(content.prefix.digest)

    def wants(self, content: Content) -> bool:
        """Whether `write` would write this block."""
        digest = content.prefix.digest
        return self._writable and digest not in self._waiting and not self._files.has(digest)

    def read(self, contents: Sequence[Content], arrived: Callable[[list[Rows]], None]) -> None:
        """Read blocks in order; `arrived` gets the rows of the first ones, up to one that cannot be read.

        It is called by the store's thread.
        """
        with self._changed:
            self._reads.append((contents, arrived))
            self._begin()

    def write(self, content: Content, rows: Mapping[str, Array], wait: bool = False) -> None:
        """Write a block soon; it is dropped where too much waits already, or that is waited for."""
        size = sum(array.nbytes for array in rows.values())
        with self._changed:
            while wait and self._waiting_bytes and self._waiting_bytes + size > self._max_waiting:
                self._changed.wait()
            if self._waiting_bytes and self._waiting_bytes + size > self._max_waiting:
                self.n_dropped += 1
                return
            self._writes.append((content, dict(rows)))
            self._waiting.add(content.prefix.digest)
            self._waiting_bytes += size
            self._begin()

    def used(self, content: Content) -> None:
        """A block that is on disk was used: it is kept longer."""
        with self._changed:
            self._writes.append((content, None))
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
                contents, arrived = reading
                arrived(self._read(contents))
            elif writing is not None:
                self._write(*writing)

    def _read(self, contents: Sequence[Content]) -> list[Rows]:
        found: list[Rows] = []
        for content in contents:
            try:
                rows = self._files.read(content)
            except Exception as error:
                self._tell("a block is damaged, and computed again", error)
                break
            if rows is None:
                break
            found.append(rows)
        for content in reversed(contents[: len(found)]):  # what precedes others is removed after them
            self._files.used(content)
        return found

    def _write(self, content: Content, rows: Rows | None) -> None:
        try:
            if rows is None:
                self._files.used(content)
            elif self._writable:
                self._files.write(content, rows)
        except Exception as error:
            self._writable = False
            self._tell("cannot be written, and keeps what it has", error)
        if rows is None:
            return
        with self._changed:
            self._waiting.discard(content.prefix.digest)
            self._waiting_bytes -= sum(array.nbytes for array in rows.values())
            self._changed.notify_all()

    def _tell(self, what: str, error: Exception) -> None:
        """Log each kind of error once."""
        if what not in self._told:
            self._told.add(what)
            text = str(error) if isinstance(error, UsageError) else f"{error!r}"
            LOG.warning("store %s: %s: %s", self._files.folder, what, text)
