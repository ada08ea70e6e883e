"""HTTP responses as bytes with the times at which they came, and connections that ask for nothing.

Knows addresses and clocks; nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

LARGEST_HEAD = 1 << 20


class BrokenResponseError(Exception):
    """A response that is no HTTP, or without its end; the text says which."""


class TimedResponse(asyncio.Protocol):
    """The bytes of one response, which ends with its connection. parts: each with the time when it came."""

    def __init__(self, request: bytes) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self._request = request
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.parts.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        """All has come, or nothing more does."""
        if not self.ended.done():
            self.ended.set_result(None)

    def lines(self) -> tuple[int, Iterator[tuple[float, str]]]:
        """The status, and the lines of the body, each with the time when its end came.

        BrokenResponseError where there is no head; of the lines, where the body breaks off.
        """
        events = self._events()
        _, status = next(events, (0.0, None))
        if not isinstance(status, int):
            raise BrokenResponseError("a response without a head")
        return status, _lines((when, data) for when, data in events if isinstance(data, bytes))

    def _events(self) -> Iterator[tuple[float, int | bytes]]:
        """The status and the body's bytes, each with the time of the part that ends them."""
        import h11  # of the extra `server`; a bench without servers does without

        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        http.send(h11.Request(method="POST", target="/", headers=[("Host", "")]))
        http.send(h11.EndOfMessage())
        missing = "a head"
        try:
            for when, data in [*self.parts, (math.inf, b"")]:
                http.receive_data(data)
                while (event := http.next_event()) is not h11.NEED_DATA:
                    if isinstance(event, h11.Response):
                        missing = "its end"
                        yield when, event.status_code
                    elif isinstance(event, h11.Data):
                        yield when, bytes(event.data)
                    elif isinstance(event, h11.EndOfMessage):
                        return
        except h11.RemoteProtocolError:
            raise BrokenResponseError(f"a response without {missing}") from None


def _lines(pieces: Iterator[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    rest = b""
    for when, piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield when, line.rstrip(b"\r").decode("utf-8", "replace")


async def timed_post(
    address: str,
    body: bytes,
    headers: dict[str, str],
    seconds: float,
    begun: Callable[[TimedResponse], None] = lambda response: None,
) -> tuple[float, TimedResponse]:
    """Send a request on a connection of its own and wait for its end; when it was sent, and the response.

    begun: gets the response before it has come.
    OSError where there is no connection, TimeoutError after so many seconds without a byte.
    """
    parts = urlsplit(address)
    name = parts.hostname or ""
    host = f"[{name}]" if ":" in name else name
    every = {
        "Host": host if parts.port is None else f"{host}:{parts.port}", "Content-Type": "application/json",
        "Content-Length": str(len(body)), "Connection": "close", **headers,
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in every.items())
    request = f"POST {parts.path or '/'} HTTP/1.1\r\n{head}\r\n".encode() + body
    begin = time.perf_counter()
    transport, response = await asyncio.get_running_loop().create_connection(
        lambda: TimedResponse(request), **_endpoint(address)
    )
    begun(response)
    try:
        while not response.ended.done():
            n_parts = len(response.parts)
            await asyncio.wait({response.ended}, timeout=seconds)
            if not response.ended.done() and n_parts == len(response.parts):
                raise TimeoutError
    finally:
        transport.close()
    return begin, response


def _endpoint(address: str) -> dict[str, Any]:
    """Host, port and TLS of an address, for asyncio."""
    parts = urlsplit(address)
    secure = parts.scheme == "https"
    context = ssl.create_default_context() if secure else None
    return {"host": parts.hostname, "port": parts.port or (443 if secure else 80), "ssl": context}


@contextlib.asynccontextmanager
async def idle_connections(address: str, count: int) -> AsyncIterator[None]:
    """Within, so many connections are open; OSError where the server or the system refuses one."""
    opened: list[asyncio.StreamWriter] = []
    try:
        for _ in range(count):
            opened.append((await asyncio.open_connection(**_endpoint(address)))[1])
        yield
    finally:
        for connection in opened:
            connection.close()
