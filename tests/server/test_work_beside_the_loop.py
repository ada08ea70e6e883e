"""What is large is refused before it is read; what takes long holds up neither loop nor other requests."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from starlette.types import Message

import graphml
from graphml.sampling.structured import params_structure
from graphml.sampling.structured.compile_turns import AT_A_TIME
from graphml.server.access.text_limits import Held
from graphml.server.engine.engine_access import POOL_THREADS
from graphml.server.engine.stored_responses import StoredResponse, StoredResponses
from graphml.server.options.server_options import RequestLimits, ServerOptions
from graphml.server.protocols import (
    anthropic_messages,
    embeddings,
    llama_tokens,
    ollama,
    openai_responses,
    request_body,
)
from graphml.server.requests import sampling_settings
from graphml.server.requests.request_fields import as_object
from graphml.server.responses.api_errors import ApiError
from graphml.server.responses.event_stream import PIECE, EventStream
from graphml.server.responses.json_response import ANSWERS, encoded_list, json_response
from graphml.server.server_app import answered
from tests.server.running_server import Running, running

LIMITS = RequestLimits(held_bytes=300_000, grammar_chars=1000, tool_chars=1000, metadata_chars=1000)
LONG = "x" * 1000
SCHEMA = {"type": "object", "properties": {LONG: {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def _call(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    ]
    return {"messages": [*HI["messages"], *said]}  # type: ignore[misc]


@pytest.fixture(scope="module")
def narrow(stories: graphml.Model) -> Iterator[Running]:
    with running(ServerOptions(parallel=2, n_ctx=512, limits=LIMITS), stories) as found:
        yield found


@pytest.mark.parametrize("number", [b"1.2345678901234567e-300", b"-2.2250738585072011e-308"])
def test_other_threads_go_on_while_numbers_are_decoded(number: bytes) -> None:
    raw = b'{"a":[' + b",".join([number] * 100_000) + b"]}"
    ended, turns = threading.Event(), [0]

    def count() -> None:
        while not ended.is_set():
            turns[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        values = as_object(raw)["a"]
    finally:
        ended.set()
        thread.join()
    assert values == [float(number)] * 100_000
    assert turns[0] > 4


@pytest.mark.parametrize("number", [b"1e999", b"-1e999"])
def test_a_number_beyond_all_is_refused(number: bytes) -> None:
    with pytest.raises(ApiError, match="Number out of range"):
        as_object(b'{"a":' + number + b"}")


def test_numbers_of_very_many_digits_are_refused() -> None:
    limits, most = RequestLimits(), request_body.DIGITS
    request_body.check_counts(b'{"a":' + b"7" * most + b',"b":"' + b"7" * 9999 + b'"}', limits)
    with pytest.raises(ApiError, match="digits of a number"):
        request_body.check_counts(b'{"a":' + b"7" * (most + 1) + b"}", limits)


REFUSED = {
    "a schema": ("/completion", {"prompt": "a", "json_schema": SCHEMA}, "json_schema"),
    "a schema as a text": ("/completion", {"prompt": "a", "json_schema": json.dumps(SCHEMA)}, "json_schema"),
    "a format": (
        "/v1/chat/completions",
        {**HI, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        "response_format",
    ),
    "a schema of messages": (
        "/v1/messages",
        {**HI, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        None,
    ),
    "a text's format": (
        "/v1/responses",
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        "text",
    ),
    "ollama's format": ("/api/chat", {**HI, "stream": False, "format": SCHEMA}, None),
    "tools": ("/v1/chat/completions", {**HI, "tools": [TOOL]}, "tools"),
    "tools of a response": (
        "/v1/responses",
        {"input": "Hi", "tools": [{"type": "web_search", "x": LONG}]},
        "tools",
    ),
    "metadata": ("/v1/responses", {"input": "Hi", "metadata": {"a": LONG}}, "metadata"),
    "arguments": ("/v1/chat/completions", _call(json.dumps({"a": LONG})), "messages"),
    "arguments as values": ("/v1/chat/completions", _call({"a": LONG}), "messages"),
    "variables": (
        "/v1/chat/completions",
        {**HI, "chat_template_kwargs": {"a": LONG}},
        "chat_template_kwargs",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_very_long_is_refused_before_it_is_read(
    narrow: Running, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    class NoJson:
        @staticmethod
        def loads(text: str) -> object:
            raise AssertionError("it was read")

        dumps = loads

    monkeypatch.setattr(sampling_settings, "json", NoJson)
    path, body, field = REFUSED[what]
    refused = narrow.post(path, body)
    assert refused.status_code == 400, refused.text
    assert "at most 1000 characters are wanted" in refused.text
    if field is not None:
        assert refused.json()["error"]["param"] == field


def test_expressions_that_take_much_memory_are_refused(server: Running) -> None:
    long = "(a|b)*" * 3000
    schemas = [{"type": "string", "pattern": long}, {"type": "object", "patternProperties": {long: {}}}]
    for body in ({"regex": long}, *({"json_schema": schema} for schema in schemas)):
        refused = server.post("/completion", {"prompt": "a", "n_predict": 1, **body})
        assert refused.status_code == 400
        assert "at most 16384 characters" in refused.text


@pytest.mark.parametrize(
    ("module", "path", "name", "body"),
    [
        (openai_responses, "/v1/responses", "as_chat", {"input": "Hi", "max_output_tokens": 1}),
        (openai_responses, "/v1/responses/input_tokens", "as_chat", {"input": "Hi"}),
        (anthropic_messages, "/v1/messages", "as_chat", HI),
        (anthropic_messages, "/v1/messages/count_tokens", "as_chat", HI),
        (ollama, "/api/chat", "_as_chat", {**HI, "stream": False, "options": {"num_predict": 1}}),
        (
            ollama,
            "/api/generate",
            "_as_chat",
            {"prompt": "a", "stream": False, "options": {"num_predict": 1}},
        ),
    ],
)
def test_what_is_made_of_a_big_body_is_made_in_a_thread(
    server: Running, monkeypatch: pytest.MonkeyPatch, module: Any, path: str, name: str, body: dict[str, Any]
) -> None:
    threads: list[str] = []
    work = getattr(module, name)

    def watched(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return work(*given)

    monkeypatch.setattr(module, name, watched)
    for size in (10, request_body.SMALL + 1):
        assert server.post(path, {**body, "unknown": "x" * size}).status_code == 200
    assert [thread.startswith("graphml-bodies") for thread in threads] == [False, True]


def test_long_answers_are_written_in_threads(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(module: Any, name: str) -> None:
        work = getattr(module, name)

        def watched(*given: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*given)

        monkeypatch.setattr(module, name, watched)

    noted(llama_tokens, "encoded_list")
    noted(embeddings, "_written")
    assert server.post("/tokenize", {"content": "a b", "with_pieces": True}).json()["tokens"][-1]["piece"]
    assert len(server.post("/v1/embeddings", {"input": ["a", "b"]}).json()["data"]) == 2
    assert len(threads) == 3
    assert all(thread.startswith("graphml-requests") for thread in threads)


@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 20_000])
def test_a_list_written_in_parts_is_the_same(count: int) -> None:
    assert msgspec.json.decode(encoded_list(range(count), str)) == [str(i) for i in range(count)]


@pytest.mark.parametrize(
    ("held", "path", "body", "n_threads"),
    [
        ((params_structure, "compiled_structure"), "/completion", {"prompt": "a", "n_predict": 1}, AT_A_TIME),
        ((embeddings, "_rows"), "/v1/embeddings", {}, POOL_THREADS["embeddings"]),
        ((llama_tokens, "_tokens"), "/tokenize", {"x": "x" * request_body.SMALL}, POOL_THREADS["large"]),
    ],
    ids=["grammars that are compiled", "texts that are embedded", "large bodies"],
)
def test_plain_requests_do_not_wait_for(
    server: Running, monkeypatch: pytest.MonkeyPatch, held: Any, path: str, body: Any, n_threads: int
) -> None:
    """More is asked for than there are threads for it; the plain request is answered before any of it."""
    go_on, begun = threading.Event(), threading.Semaphore(0)
    work = getattr(*held)

    def late(*arguments: Any) -> Any:
        begun.release()
        assert go_on.wait(20)
        return work(*arguments)

    monkeypatch.setattr(*held, late)
    own = {"/completion": "regex", "/tokenize": "content"}.get(path, "input")
    with ThreadPoolExecutor(6) as clients:
        try:
            waiting = [clients.submit(server.post, path, {**body, own: f"ab{i}"}) for i in range(6)]
            for _ in range(n_threads):
                assert begun.acquire(timeout=20)
            assert server.post("/completion", {"prompt": "a", "n_predict": 1}).status_code == 200
            assert not any(answer.done() for answer in waiting)
        finally:
            go_on.set()
        assert [answer.result().status_code for answer in waiting] == [200] * 6


def test_big_bodies_are_bounded_together_and_small_ones_go_on(narrow: Running) -> None:
    address = urlsplit(narrow.address)
    body = json.dumps({"prompt": "a", "n_predict": 1, "x": "y" * 200_000}).encode()
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)

    def sent(count: int) -> socket.socket:
        client = socket.create_connection((address.hostname or "", address.port or 0), timeout=20)
        client.sendall(head + body[:count])
        return client

    with sent(190_000) as first:
        end, status = time.monotonic() + 20, b"200"
        while status == b"200" and time.monotonic() < end:  # until the first one's bytes have come
            with sent(len(body)) as second:
                status = second.recv(12)[9:]
        assert status == b"429"
        assert narrow.post("/completion", {"prompt": "a", "n_predict": 1}).status_code == 200
        first.sendall(body[190_000:])
        assert first.recv(12)[9:] == b"200"
    assert narrow.http.post("/completion", content=body).status_code == 200


def test_bytes_that_are_held_are_bounded_but_for_a_single_request() -> None:
    held = Held(100)
    held.add(1000)
    with pytest.raises(ApiError) as refused:
        held.add(1)
    assert refused.value.status == 429
    held.add(-1000)
    held.add(60)
    held.add(40)
    assert held.count == 100


class Stopped:
    """A client that takes some messages, and then nothing."""

    def __init__(self, most: int) -> None:
        self.sizes: list[int] = []
        self._most = most

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.sizes.append(len(message["body"]))
            if len(self.sizes) >= self._most:
                await asyncio.sleep(60)


def test_an_answer_is_written_in_pieces_as_its_client_takes_them() -> None:
    """A second one that would take more memory than all may is refused meanwhile."""
    response, held, other = json_response(["x" * 10 * PIECE]), Held(11 * PIECE), list[Message]()

    async def noted(message: Message) -> None:
        other.append(message)

    async def received() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def run() -> list[int]:
        client = Stopped(3)
        scope: Any = {"type": "http", "path": "/", ANSWERS: held}
        sending = asyncio.ensure_future(response(scope, received, client.send))
        while len(client.sizes) < 3:
            await asyncio.sleep(0)
        await json_response(["x" * 2 * PIECE])(scope, received, noted)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return client.sizes

    assert asyncio.run(run()) == [PIECE] * 3
    assert other[0]["status"] == 429
    assert held.count == 0


def test_a_stream_of_events_that_are_all_there_gives_others_their_turn() -> None:
    turns, at = 0, list[int]()

    async def events() -> Any:
        for _ in range(30):
            yield b"x"

    async def run() -> None:
        nonlocal turns

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def send(message: Message) -> None:
            at.append(turns)

        async def receive() -> Message:
            await asyncio.sleep(60)
            raise AssertionError

        beside = asyncio.ensure_future(others())
        await EventStream(events(), 0, 0, lambda: None)({"type": "http"}, receive, send)
        beside.cancel()

    asyncio.run(run())
    assert at[-1] - at[0] >= 9


def test_those_who_read_a_stored_response_share_its_bytes() -> None:
    kept = StoredResponses(2, 1 << 20)
    kept.put("key", StoredResponse({"id": "a", "x": "y"}, [], []))
    assert kept.response("key", "a") is kept.response("key", "a")
    assert json.loads(kept.response("key", "a")) == {"id": "a", "x": "y"}
    with pytest.raises(ApiError):
        kept.response(None, "a")


def test_stored_responses_are_read_as_events_by_a_few_at_a_time(server: Running) -> None:
    shared = server.service.shared
    response = {"id": "resp_a", "output": [], "status": "completed"}
    shared.responses.put(None, StoredResponse(response, [], []))
    path = "/v1/responses/resp_a?stream=true"
    shared.replays[None] = most = shared.options.limits.replays
    assert server.http.get(path).status_code == 429
    shared.replays["another key"], shared.replays[None] = most, most - 1
    for headers in ({}, {"X-Conversation-Id": "stored"}):
        assert server.http.get(path, headers=headers).status_code == 200
        assert shared.replays[None] == most - 1
    shared.replays.clear()


def test_an_error_lets_go_of_what_its_request_had() -> None:
    """Without a collection of garbage, which may come late."""

    class Body:
        pass

    bodies: list[weakref.ref[Body]] = []

    def refused() -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        try:
            raise ValueError
        except ValueError:
            raise ApiError(413, "too large") from None

    async def run() -> int:
        work = asyncio.get_running_loop().run_in_executor(None, refused)
        models: Any = SimpleNamespace(shared=SimpleNamespace(services=[]))
        return int((await answered({"type": "http", "path": "/"}, models, work)).status_code)

    gc.disable()
    try:
        assert asyncio.run(run()) == 413
        assert bodies[0]() is None
    finally:
        gc.enable()
