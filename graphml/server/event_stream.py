"""Server-sent events: a response that ends well whether its events, its reader or its time ends first.

While no event comes, comments are sent. Where the client leaves or reads nothing for too long, the events'
generator is closed, and with it what computes them. Knows ASGI; nothing of what the events say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from graphml.server.api_errors import as_api_error

T = TypeVar("T")
PING = b":\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
encode = msgspec.json.Encoder().encode


def event(data: Any, name: str | None = None) -> bytes:
    """One event; name: its type, where the protocol has one."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode(data) + b"\n\n"


class EventStream:
    """An ASGI response that sends what a generator yields.

    ping: seconds of silence after which a comment is sent, below 0 for never. timeout: seconds in which the
    client must take what is sent. cancel: ends what computes the events; called at the end, even where the
    generator has not begun to read it. anthropic: the shape of an error in mid-stream.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        ping: float,
        timeout: float,
        cancel: Callable[[], None],
        anthropic: bool = False,
    ) -> None:
        self._events, self._ping, self._timeout = events, ping, timeout
        self._cancel, self._anthropic = cancel, anthropic
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all, or as many as the client wants."""
        sending, gone = asyncio.ensure_future(self._send_all(send)), asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._cancel()
            for one in (sending, gone):
                one.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS + self.headers})
        try:
            async for chunk in self._with_pings():
                body = {"type": "http.response.body", "body": chunk, "more_body": True}
                await asyncio.wait_for(send(body), self._timeout)
        except (asyncio.CancelledError, TimeoutError, OSError):
            raise
        except Exception as error:
            body = as_api_error(error).body(self._anthropic)
            data = event(body, "error" if self._anthropic else None)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _with_pings(self) -> AsyncIterator[bytes]:
        if self._ping <= 0:
            async for chunk in self._events:
                yield chunk
            return
        following: asyncio.Task[bytes] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(self._events))
                while not (await asyncio.wait({following}, timeout=self._ping))[0]:
                    yield PING
                try:
                    yield following.result()
                except StopAsyncIteration:
                    return
        finally:
            if following is not None and not following.done():
                following.cancel()
                with contextlib.suppress(BaseException):
                    await following


async def _left(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(receive: Receive, work: Awaitable[T], cancel: Callable[[], None]) -> T | None:
    """What some work returns; None, and the work is cancelled, where the client leaves before.

    A handler is not told that its client has left, so it must look.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return None
    finally:
        cancel()
        for one in (working, gone):
            one.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
