"""A response of HTTP/1.1 as bytes with the times at which they came; read after it has ended.

While it comes nothing is done but to look at the clock, so that a client on the server's own cores takes as
little of them as it can. Knows sockets, HTTP and clocks; nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit


class BrokenResponseError(Exception):
    """A response that is no HTTP, or without its end; the text says which."""


class TimedResponse(asyncio.Protocol):
    """The bytes of one response, which ends with its connection. parts: each with the time when it came."""

    def __init__(self, request: bytes) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self._request = request
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

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
        raw = b"".join(data for _, data in self.parts)
        head, found, _ = raw.partition(b"\r\n\r\n")
        first, *headers = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not found or not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise BrokenResponseError("a response without a head")
        named = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in headers)}
        chunked = "chunked" in named.get("transfer-encoding", "").lower()
        pieces = self._pieces(raw, len(head) + 4, chunked)
        return int(status[:3]), _lines(pieces)

    def _pieces(self, raw: bytes, at: int, chunked: bool) -> Iterator[tuple[float, bytes]]:
        """The body's bytes in pieces, with times."""
        ends, seen = iter(self.parts), 0
        when = 0.0

        def time_of(end: int) -> float:
            """When the bytes up to here had come."""
            nonlocal seen, when
            while seen < end:
                when, data = next(ends)
                seen += len(data)
            return when

        if not chunked:
            time_of(at)
            yield when, raw[at:seen]
            yield from ends
            return
        while True:
            line = raw.find(b"\r\n", at)
            size = raw[at:line].split(b";")[0].strip()
            try:
                count = int(size, 16) if line >= 0 else -1
            except ValueError:
                count = -1
            begin, end = line + 2, line + 2 + count
            if count < 0 or end > len(raw):
                raise BrokenResponseError("a response without its end")
            if not count:
                return
            yield time_of(end), raw[begin:end]
            at = end + 2


def _lines(pieces: Iterator[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    rest = b""
    for when, piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for one in whole:
            yield when, one.rstrip(b"\r").decode("utf-8", "replace")


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
    head = "".join(f"{one}: {value}\r\n" for one, value in every.items())
    request = f"POST {parts.path or '/'} HTTP/1.1\r\n{head}\r\n".encode() + body
    secure = parts.scheme == "https"
    begin = time.perf_counter()
    transport, response = await asyncio.get_running_loop().create_connection(
        lambda: TimedResponse(request),
        name,
        parts.port or (443 if secure else 80),
        ssl=ssl.create_default_context() if secure else None,
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
