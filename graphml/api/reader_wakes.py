"""Readers of streams are woken once a step is handed out: each once, and each event loop once for all of its.

To wake an event loop is to write to a socket, at which its thread takes the interpreter's lock from the one
that writes. Knows threads and event loops; nothing of tokens.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class WaitingReader:
    """Who waits for a stream. at_end: only for its end. called: it will be woken."""

    loop: asyncio.AbstractEventLoop | None = None
    called = False

    def __init__(self, at_end: bool = False) -> None:
        self.at_end = at_end

    def wake(self) -> None:
        """There is something to read; of a task in its loop's thread."""
        raise NotImplementedError


class ThreadReader(WaitingReader):
    """A thread, which waits at a queue."""

    def __init__(self, at_end: bool = False) -> None:
        super().__init__(at_end)
        self.woken: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """See `WaitingReader`."""
        self.woken.put(None)


class TaskReader(WaitingReader):
    """A task of an event loop. It must look for what is new, and `wait` without another await in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop = loop
        self._future: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Return once it is woken."""
        self._future = self.loop.create_future()
        await self._future

    def wake(self) -> None:
        """See `WaitingReader`."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Wakes:
    """Those who are to be woken; any thread adds to them, one wakes them."""

    def __init__(self) -> None:
        self._called: deque[WaitingReader] = deque()

    def later(self, reader: WaitingReader) -> None:
        """Wake a reader by the next `now`."""
        if not reader.called:
            reader.called = True
            self._called.append(reader)

    def now(self) -> None:
        """Wake all that were called."""
        of_loops: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        while self._called:
            reader = self._called.popleft()
            reader.called = False
            if reader.loop is None:
                reader.wake()
            else:
                of_loops.setdefault(reader.loop, []).append(reader.wake)
        for loop, wakes in of_loops.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_call_all, wakes)


def _call_all(wakes: list[Callable[[], None]]) -> None:
    for wake in wakes:
        wake()
