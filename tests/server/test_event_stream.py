"""Streams of events: comments in silence, and an end where nobody takes what is sent."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from graphml.server.responses.event_stream import DONE, PING, EventStream


class Client:
    """Takes what is sent: all of it, or nothing behind the first `most` messages."""

    def __init__(self, most: int = 1000) -> None:
        self.got: list[bytes] = []
        self._most, self._left = most, asyncio.Event()

    async def send(self, message: Message) -> None:
        if len(self.got) >= self._most:
            await asyncio.sleep(60)
        self.got.append(message.get("body", b""))

    async def receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}


async def _slow(chunks: list[bytes], seconds: float) -> AsyncGenerator[bytes, None]:
    for one in chunks:
        await asyncio.sleep(seconds)
        yield one


def _sent(events: AsyncGenerator[bytes, None], ping: float, timeout: float, most: int = 1000) -> list[bytes]:
    """What a client got, until the stream has ended; it was cancelled then."""
    cancelled: list[bool] = []

    async def run() -> list[bytes]:
        client = Client(most)
        stream = EventStream(events, ping, timeout, lambda: cancelled.append(True))
        await asyncio.wait_for(stream({"type": "http"}, client.receive, client.send), 20)
        return client.got

    got = asyncio.run(run())
    assert cancelled == [True]
    return got


@pytest.mark.parametrize(("ping", "comments"), [(0.05, True), (-1.0, False), (5.0, False)])
def test_comments_are_sent_while_no_event_comes(ping: float, comments: bool) -> None:
    got = _sent(_slow([b"data: 1\n\n", DONE], 0.2), ping, 10.0)
    assert [one for one in got if one not in (b"", PING)] == [b"data: 1\n\n", DONE]
    assert got[-1] == b""
    assert (PING in got[1:-2]) is comments


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_stream_ends_where_its_client_does_not_take_it_in_time(most: int) -> None:
    ended: list[bool] = []

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            ended.append(True)

    assert len(_sent(endless(), 30.0, 0.1, most)) == most
    assert ended == [True]


def test_a_comment_that_nobody_takes_ends_a_stream() -> None:
    assert _sent(_slow([DONE], 60.0), 0.05, 0.1, most=1) == [b""]


def test_an_event_whose_time_is_up_is_not_behind_a_long_silence() -> None:
    """The time to take it counts from when it was sent, not from the event before."""
    got = _sent(_slow([b"data: 1\n\n", b"data: 2\n\n", DONE], 0.3), -1.0, 0.2)
    assert got[1:] == [b"data: 1\n\n", b"data: 2\n\n", DONE, b""]


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan])
def test_without_a_time_nobody_looks_at_the_clock(timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, naps, here = asyncio.sleep, list[float](), threading.get_ident()

    async def counted(seconds: float) -> None:
        if threading.get_ident() == here:  # servers of other tests, in threads, look at it all the time
            naps.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", counted)
    chunks = [b"data: 1\n\n", b"data: 2\n\n", DONE]
    assert _sent(_slow(chunks, 0.05), -1.0, timeout)[1:] == [*chunks, b""]
    assert len(naps) < 10
