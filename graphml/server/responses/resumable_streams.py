"""Streams that outlive their connection: their events are numbered, kept for a while, and read again.

A request asks for it by a name of its own (`X-Conversation-Id`). Knows bytes, clocks and event loops; nothing
of what events say.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from graphml.server.responses.api_errors import ApiError, Style

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9_.:/\-]{1,256}", re.ASCII)
LARGEST = 1 << 20
"""Bytes of events that are kept of a stream, the latest ones."""
MOST = 64
"""Streams that are kept."""
ALONE_S = 60.0
"""Seconds after which a stream that nobody reads is given up."""
KEPT_S = 300.0
"""Seconds for which one that has ended is kept."""
Name: TypeAlias = tuple[str | None, str]
"""Whose stream it is, and what it is called there."""


class Recording:
    """A stream whose events are computed whether somebody reads them or not, for a while."""

    def __init__(self, events: AsyncGenerator[bytes, None], cancel: Callable[[], None], style: Style) -> None:
        self._events, self._cancel, self.style = events, cancel, style
        self._kept: dict[int, bytes] = {}
        self._first = self._next = self._size = 0
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._readers = 0
        self._alone: asyncio.TimerHandle | None = None
        self.ended: float | None = None
        self._task = asyncio.ensure_future(self._record())
        self._left()

    async def read(self, begin: int) -> AsyncGenerator[bytes, None]:
        """Events from that number on, as they come; ApiError 404 where it is not kept any more."""
        self._readers += 1
        if self._alone is not None:
            self._alone.cancel()
        try:
            while True:
                changed = self._changed
                while begin < self._next:
                    if begin < self._first:
                        raise ApiError(404, f"events before {self._first} of this stream are not kept")
                    yield self._kept[begin]
                    begin += 1
                if self.ended is not None:
                    break
                await changed.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._readers -= 1
            self._left()

    def give_up(self) -> None:
        """Nobody wants it any more."""
        if self.ended is not None:
            return
        self._task.cancel()
        self._cancel()

    async def _record(self) -> None:
        try:
            async for chunk in self._events:
                self._keep(b"id: %d\n" % self._next + chunk)
        except Exception as error:
            self._error = error
        finally:
            self.ended = time.monotonic()
            self._notify()
            self._cancel()
            await self._events.aclose()

    def _keep(self, chunk: bytes) -> None:
        self._kept[self._next] = chunk
        self._next += 1
        self._size += len(chunk)
        self._shorten(1)
        self._notify()

    def _shorten(self, least: int) -> None:
        """Keep the latest MiB; least: so many events, however large."""
        while self._size > LARGEST and self._first < self._next - least:
            self._size -= len(self._kept.pop(self._first))
            self._first += 1

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _left(self) -> None:
        """Give it up where nobody comes back for it."""
        if self._readers:
            return
        self._shorten(0)
        if self.ended is None:
            self._alone = asyncio.get_running_loop().call_later(ALONE_S, self.give_up)


class ResumableStreams:
    """The streams that are kept, by name."""

    def __init__(self) -> None:
        self._kept: dict[Name, Recording] = {}
        self._coming: dict[Name, asyncio.Task[Any]] = {}

    async def opened(self, name: Name, opening: Coroutine[Any, Any, T]) -> T:
        """The model of a stream that will have this name; ApiError 400 where that is ended meanwhile."""
        if (older := self._coming.pop(name, None)) is not None:
            older.cancel()
        self._coming[name] = task = asyncio.ensure_future(opening)
        try:
            await asyncio.wait({task})
            if self._coming.get(name) is not task:
                raise ApiError(400, "the stream was cancelled while its model was being loaded")
            return task.result()
        finally:
            if self._coming.get(name) is task:
                del self._coming[name]
            task.cancel()

    def begin(
        self, name: Name, events: AsyncGenerator[bytes, None], cancel: Callable[[], None], style: Style
    ) -> AsyncGenerator[bytes, None]:
        """Record events and read them; an older stream of this name ends.

        style: the shape of an error in them. ApiError 400 for a wrong name, 429 where too many are kept.
        """
        try:
            if not NAME.fullmatch(name[1]):
                raise ApiError(400, "X-Conversation-Id: wanted 1 to 256 letters, digits, or ._:/-")
            self._forget(name)
        except ApiError:
            cancel()
            raise
        self._kept[name] = recording = Recording(events, cancel, style)
        return recording.read(0)

    def find(self, name: Name) -> Recording:
        """A stream; ApiError 404 for a name that is not known, 503 while its model is being loaded."""
        self._expire()
        if name in self._coming:
            raise ApiError(503, "the model of this stream is being loaded; try again later")
        if name not in self._kept:
            raise ApiError(404, "there is no stream of this name; they are kept for some minutes")
        return self._kept[name]

    def end(self, name: Name) -> None:
        """Give a stream up, and forget it; ApiError 404 for a name that is not known."""
        if (task := self._coming.pop(name, None)) is not None:
            task.cancel()
            return
        self.find(name).give_up()
        del self._kept[name]

    def _forget(self, name: Name) -> None:
        """Make room for a stream."""
        self._expire()
        if (older := self._kept.pop(name, None)) is not None:
            older.give_up()
        ended = [other for other, recording in self._kept.items() if recording.ended is not None]
        n_live = sum(other[0] == name[0] for other in self._kept.keys() - set(ended))
        if name[0] is not None and n_live >= MOST - MOST // 2:
            raise ApiError(429, f"this key has {n_live} streams that can be resumed; try again later")
        if len(self._kept) >= MOST and not ended:
            raise ApiError(429, f"{MOST} streams are kept for resumption; try again later")
        if len(self._kept) >= MOST:
            count = Counter(other[0] for other in ended)
            del self._kept[max(ended, key=lambda other: count[other[0]])]  # the oldest of who has most

    def _expire(self) -> None:
        oldest = time.monotonic() - KEPT_S
        for name, recording in list(self._kept.items()):
            if recording.ended is not None and recording.ended < oldest:
                del self._kept[name]
