"""Streams that are read on by another connection, at the event behind the last one that came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

import graphml
from graphml.server.options.server_options import ServerOptions
from graphml.server.responses import resumable_streams
from graphml.server.responses.api_errors import ApiError
from graphml.server.responses.resumable_streams import ResumableStreams
from tests.server.running_server import Running, running

MESSAGES = [{"role": "user", "content": "Once upon a time"}]
SAME: dict[str, Any] = {"stream": True, "temperature": 0, "max_tokens": 30, "ignore_eos": True}
ASKED = [
    ("/v1/chat/completions", {**SAME, "messages": MESSAGES}),
    ("/v1/completions", {**SAME, "prompt": "Once"}),
    ("/completion", {**SAME, "prompt": "Once"}),
    ("/v1/messages", {"stream": True, "temperature": 0, "max_tokens": 30, "messages": MESSAGES}),
    ("/v1/responses", {"stream": True, "temperature": 0, "max_output_tokens": 30, "input": "Once"}),
]


@pytest.fixture(scope="module")
def keyed(stories: graphml.Model) -> Iterator[Running]:
    with running(ServerOptions(parallel=2, n_ctx=256, api_keys=("one", "two")), stories) as found:
        yield found


def _events(text: str) -> list[str]:
    return [one for one in text.split("\n\n") if one and not one.startswith(":")]


@pytest.mark.parametrize(("path", "body"), ASKED, ids=[path for path, _ in ASKED])
def test_a_stream_goes_on_behind_the_last_event(server: Running, path: str, body: dict[str, Any]) -> None:
    name = "conv" + path.replace("/", ".")
    with server.http.stream("POST", path, json=body, headers={"X-Conversation-Id": name}) as response:
        first = next(response.iter_bytes()).decode()
    assert first.startswith("id: 0\n")
    whole = _events(server.http.get("/v1/stream", params={"conv_id": name}).text)
    assert [one.split("\n")[0] for one in whole] == [f"id: {i}" for i in range(len(whole))]
    assert len(whole) > 5
    rest = server.http.get("/v1/stream", params={"conv_id": name}, headers={"Last-Event-ID": "3"})
    assert _events(rest.text) == whole[4:]
    assert rest.headers["content-type"].startswith("text/event-stream")
    assert _events(server.http.get("/v1/stream", params={"conv_id": name, "from": "4"}).text) == whole[4:]
    assert server.at_rest()


def test_streams_are_of_their_key_and_names_are_checked(keyed: Running) -> None:
    one, two = {"X-Api-Key": "one"}, {"X-Api-Key": "two"}
    body = {"prompt": "a", "n_predict": 2, "stream": True}
    keyed.post("/completion", body, headers={**one, "X-Conversation-Id": "mine"})
    asked = {"conv_id": "mine"}
    assert keyed.http.get("/v1/stream", params=asked, headers=one).status_code == 200
    assert keyed.http.get("/v1/stream", params=asked, headers=two).status_code == 404
    wrong = keyed.http.get("/v1/stream", params={**asked, "from": "-1"}, headers=one)
    assert wrong.json()["error"]["param"] == "from"
    assert keyed.post("/completion", body, headers={**one, "X-Conversation-Id": "a::b/c"}).status_code == 200
    for name in ("", "a b", "x" * 257, "a\\b"):
        refused = keyed.post("/completion", body, headers={**one, "X-Conversation-Id": name})
        assert refused.status_code == 400, name
    assert keyed.at_rest()


def test_a_stream_that_nobody_comes_back_for_is_given_up(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable_streams, "ALONE_S", 0.05)
    body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True, "n": 4}
    with server.http.stream("POST", "/completion", json=body, headers={"X-Conversation-Id": "left"}) as one:
        next(one.iter_bytes())
    assert server.at_rest()


class Source:
    """Events as a test lets them come."""

    def __init__(self) -> None:
        self.goes_on, self.closed, self.cancelled = asyncio.Event(), False, 0

    async def events(self, chunks: list[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            for chunk in chunks:
                yield chunk
            await self.goes_on.wait()
            raise RuntimeError("on purpose")
        finally:
            self.closed = True

    def cancel(self) -> None:
        self.cancelled += 1


def test_the_latest_events_are_kept_and_an_error_is_for_each_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_streams, "LARGEST", 30)

    async def scene() -> None:
        source, streams = Source(), ResumableStreams()
        first = streams.begin((None, "a"), source.events([b"x" * 5] * 6), source.cancel, False)
        await asyncio.sleep(0.01)
        found = streams.find((None, "a"))
        assert [await anext(found.read(one)) for one in (4, 5)] == [b"id: 4\nxxxxx", b"id: 5\nxxxxx"]
        with pytest.raises(ApiError, match="not kept"):
            await anext(first)
        source.goes_on.set()
        for _ in range(2):
            reading = found.read(5)
            assert await anext(reading) == b"id: 5\nxxxxx"
            with pytest.raises(RuntimeError, match="on purpose"):
                await anext(reading)
        assert source.closed
        assert source.cancelled == 1

    asyncio.run(scene())


def test_the_number_of_streams_and_their_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_streams, "MOST", 2)

    async def scene() -> None:
        sources, streams = [Source() for _ in range(4)], ResumableStreams()
        for name, source in zip("ab", sources, strict=False):
            streams.begin((None, name), source.events([]), source.cancel, False)
        await asyncio.sleep(0.01)
        with pytest.raises(ApiError) as error:
            streams.begin((None, "c"), sources[2].events([]), sources[2].cancel, False)
        assert (error.value.status, sources[2].cancelled) == (429, 1)
        streams.begin((None, "a"), sources[3].events([]), sources[3].cancel, False)  # in place of the first
        await asyncio.sleep(0.01)
        assert sources[0].closed
        sources[1].goes_on.set()
        await asyncio.sleep(0.01)
        assert streams.find((None, "b")).ended is not None
        monkeypatch.setattr(resumable_streams, "KEPT_S", -1.0)
        with pytest.raises(ApiError, match="no stream"):
            streams.find((None, "b"))
        streams.find((None, "a")).give_up()
        await asyncio.sleep(0.01)
        assert sources[3].closed

    asyncio.run(scene())


def test_a_minute_alone_begins_when_the_last_reader_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_streams, "ALONE_S", 0.2)

    async def scene() -> None:
        source, streams = Source(), ResumableStreams()
        streams.begin((None, "a"), source.events([b"x"]), source.cancel, False)
        found = streams.find((None, "a"))
        for _ in range(4):  # each reader leaves before the time of the one before it is over
            reading = found.read(0)
            await anext(reading)
            await asyncio.sleep(0.12)
            await reading.aclose()
            await asyncio.sleep(0.12)
            assert found.ended is None
        await asyncio.sleep(0.5)
        assert source.closed

    asyncio.run(scene())


def test_an_event_that_is_larger_than_what_is_kept_goes_with_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resumable_streams, "LARGEST", 30)

    async def scene() -> None:
        source, streams = Source(), ResumableStreams()
        reading = streams.begin((None, "a"), source.events([b"x" * 100]), source.cancel, False)
        await asyncio.sleep(0.01)
        assert len(await anext(reading)) > 100
        await reading.aclose()
        with pytest.raises(ApiError, match="not kept"):
            await anext(streams.find((None, "a")).read(0))

    asyncio.run(scene())


def test_a_stream_that_is_deleted_ends(server: Running) -> None:
    body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
    headers = {"X-Conversation-Id": "ended"}
    with server.http.stream("POST", "/completion", json=body, headers=headers) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.http.delete("/v1/stream?conv_id=ended").status_code == 204
        assert '"stop":true' not in "".join(lines)  # as it is at the end of an answer
    assert server.at_rest()
    assert server.http.get("/v1/stream?conv_id=ended").status_code == 404
    assert server.http.delete("/v1/stream?conv_id=ended").status_code == 404
