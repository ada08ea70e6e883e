"""Who reads streams is woken once a step, however many tokens came in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from graphml.api.reader_wakes import TaskReader, ThreadReader, Wakes
from graphml.api.token_stream import Result, Timings, TokenStream
from graphml.api.tokens import Token

RESULT = Result([1], "a", "end", 1, 0, 1, Timings())


def _written(wakes: Wakes, streams: list[TokenStream], n_tokens: int) -> None:
    """Steps with a token of each stream, as an engine's thread writes them."""
    for number in range(n_tokens):
        for one in streams:
            one.put(Token(number, "a"))
        wakes.now()
    for one in streams:
        one.end(0, RESULT)
    wakes.now()


async def _read(stream: TokenStream) -> list[int]:
    return [token.id async for token in stream]


def test_an_event_loop_is_woken_once_for_all_streams_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes, calls = Wakes(), list[Any]()
    streams = [TokenStream(1, wakes) for _ in range(8)]

    async def run() -> list[list[int]]:
        readers = [asyncio.ensure_future(_read(one)) for one in streams]
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def counted(callback: Callable[..., Any], *given: Any) -> Any:
            calls.append(callback)
            return call(callback, *given)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        _written(wakes, streams, 3)
        found = await asyncio.gather(*readers)
        monkeypatch.undo()
        return found

    assert asyncio.run(run()) == [[0, 1, 2]] * 8
    assert len(calls) == 4


def test_readers_of_all_kinds_get_every_token() -> None:
    wakes = Wakes()
    streams = [TokenStream(1, wakes) for _ in range(4)]
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda one=one: found.append([token.id for token in one])) for one in streams
    ]
    ends = [threading.Thread(target=lambda one=one: found.append(one.wait()[0].tokens)) for one in streams]

    async def run() -> list[list[int]]:
        return await asyncio.gather(*(_read(one) for one in streams))

    tasks = threading.Thread(target=lambda: found.extend(asyncio.run(run())))
    every = [*threads, *ends, tasks]
    for one in every:
        one.start()
    _written(wakes, streams, 500)
    for one in every:
        one.join(20)
    assert sorted(found) == sorted([[1]] * 4 + [list(range(500))] * 8)


def test_who_waits_for_the_end_is_not_woken_before() -> None:
    wakes, woken = Wakes(), list[str]()
    stream = TokenStream(1, wakes)
    waiting = threading.Thread(target=stream.wait)
    waiting.start()
    while not stream._readers:
        pass
    reader = stream._readers[0]
    wake = reader.wake
    reader.wake = lambda: (woken.append("end"), wake())[1]  # type: ignore[method-assign]
    _written(wakes, [stream], 5)
    waiting.join(20)
    assert woken == ["end"]


def test_a_reader_whose_loop_is_closed_stops_nobody() -> None:
    wakes, woken = Wakes(), ThreadReader()
    loop = asyncio.new_event_loop()
    closed = TaskReader(loop)
    loop.close()
    for one in (closed, woken):
        wakes.later(one)
    wakes.now()
    woken.woken.get(timeout=10)
