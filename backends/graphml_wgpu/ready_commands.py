"""Command buffers made ahead: while the device runs a step, worker threads encode the next one.

A command buffer is submitted once, but what it holds is the same from token to token. Knows keys that tell
command buffers apart; nothing of what is in them, or of submitting.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

from graphml.errors import BackendError
from graphml_wgpu.encode import CommandBuffer


class UnderWay:
    """How many threads encode now. wgpu ends the process where a buffer is destroyed meanwhile."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when none does."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)


AHEAD = 2
"""Command buffers that are ready or being made: two, so that a step may be shorter than its encoding."""


class ReadyCommands:
    """Command buffers of one recording, for the key (grids and copies) that was asked for last.

    Used from one thread at a time. What nobody takes is released along with this object.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._key: Hashable = None
        self._repeats = False
        self._made: deque[Future[CommandBuffer]] = deque()

    def take(self, key: Hashable) -> CommandBuffer | None:
        """Commands for a key that were made ahead; None where there are none, or none without an error."""
        self._repeats = key == self._key
        if not self._repeats:
            self._drop()
            self._key = key
        if not self._made:
            return None
        try:
            return self._made.popleft().result()
        except BackendError:
            self._drop()
            return None

    def prepare(self, encode: Callable[[], CommandBuffer]) -> None:
        """Make commands for the key taken last, if it was asked for twice; encode: from any thread."""
        with contextlib.suppress(RuntimeError):  # no workers: they end before threads that still run steps
            while self._repeats and len(self._made) < AHEAD:
                self._made.append(self._pool.submit(encode))

    def _drop(self) -> None:
        for command in self._made:
            command.cancel()
        self._made.clear()
