"""Server-sent events: a response that ends well whether its events, its reader or its time ends first.

While no event comes, comments are sent. Where the client leaves or reads nothing for too long, the events'
generator is closed, and with it what computes them. Knows ASGI; nothing of what the events say.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from graphml.api.template_messages import fenced_value
from graphml.server.responses.api_errors import Style, as_api_error
from graphml.text.tokenizer.tokenizer import well_formed

T = TypeVar("T")
PIECE = 64 << 10
"""Bytes that are sent at a time; then the client must take some of them."""
IN_A_ROW = 3
"""Events that are sent, where all are there, until others have their turn."""
PING = b":\n\n"
DONE = b"data: [DONE]\n\n"
EVENTS, LINES = b"text/event-stream; charset=utf-8", b"application/x-ndjson"
HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_ENCODE = msgspec.json.Encoder().encode


def encode(data: Any) -> bytes:
    """JSON; lone surrogates, which a model may write as an escape in a call's arguments, become U+FFFD."""
    try:
        return _ENCODE(data)
    except UnicodeEncodeError:
        return _ENCODE(fenced_value(data, well_formed))


def event(data: Any, name: str | None = None) -> bytes:
    """One event; name: its type, where the protocol has one."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode(data) + b"\n\n"


def error_event(body: dict[str, Any], style: Style) -> bytes:
    """An error in mid-stream."""
    if style == "ollama":
        return line(body)
    return event(body, "error" if style == "anthropic" else None)


def line(data: Any) -> bytes:
    """One object of a stream of JSON lines, as ollama sends them."""
    return encode(data) + b"\n"


async def messages(body: bytes, more: bool) -> AsyncGenerator[Message, None]:
    """ASGI's messages that send these bytes, in pieces; others have their turn between two of them.

    That a client has left is known only then: without a turn all the rest would be written for nobody.
    """
    for begin in range(0, len(body) or 1, PIECE):
        if begin:
            await asyncio.sleep(0)
        piece, is_last = body[begin : begin + PIECE], begin + PIECE >= len(body)
        yield {"type": "http.response.body", "body": piece, "more_body": more or not is_last}


class EventStream:
    """An ASGI response that sends what a generator yields.

    ping: seconds of silence after which a comment is sent. timeout: seconds in which the client must take
    what is sent. Neither counts where it is 0 or less. cancel: ends what computes the events; called at the
    end, even where the generator has not begun to read it. style: the shape of an error in mid-stream;
    ollama's streams are JSON lines, which have no comments.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        ping: float,
        timeout: float,
        cancel: Callable[[], None],
        style: Style = "openai",
    ) -> None:
        self._events, self._ping = events, ping if ping > 0 and style != "ollama" else math.inf
        self._timeout = timeout if timeout > 0 else math.inf
        self._cancel, self._style = cancel, style
        self._n_sent = 0
        self._sends, self._since = False, 0.0  # whether something is being sent, and since when
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all, or as many as the client wants."""
        self._since = time.monotonic()
        running = [
            asyncio.ensure_future(coroutine)
            for coroutine in (self._send_all(send), client_left(receive), self._watch(send))
        ]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        kind = (b"content-type", LINES if self._style == "ollama" else EVENTS)
        headers = [kind, *HEADERS, *self.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for chunk in self._events:
                await self._give(send, chunk)
        except (asyncio.CancelledError, OSError):
            raise
        except Exception as error:
            await self._give(send, error_event(as_api_error(error).body(self._style), self._style))
        await self._give(send, b"", more=False)

    async def _give(self, send: Send, chunk: bytes, more: bool = True) -> None:
        self._n_sent += 1
        if self._n_sent % IN_A_ROW == 0:
            await asyncio.sleep(0)
        async for message in messages(chunk, more):
            self._sends, self._since = True, time.monotonic()
            await send(message)
        self._sends = False

    async def _watch(self, send: Send) -> None:
        """Send comments in silence; return where the client does not take what is sent.

        It looks now and then: a timer of each event would take longer than the event.
        """
        while True:
            limit = self._timeout if self._sends else self._ping
            left = self._since + limit - time.monotonic()
            if left <= 0 and self._sends:
                return
            if left <= 0:
                await asyncio.wait_for(self._give(send, PING), self._timeout)
            else:
                await asyncio.sleep(min(left, self._timeout, self._ping))


async def client_left(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(receive: Receive, work: Awaitable[T], cancel: Callable[[], None]) -> T | None:
    """What some work returns; None, and the work is cancelled, where the client leaves before.

    A handler is not told that its client has left, so it must look.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(client_left(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return None
    finally:
        cancel()
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
