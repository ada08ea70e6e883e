"""Bodies that are big or come slowly: refused or decoded without holding up other requests."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

import graphml
from graphml.server import server_app
from graphml.server.access import connections
from graphml.server.engine.engine_access import _PlaceInPool
from graphml.server.engine.running_request import Generation
from graphml.server.observing.request_log import EndedRequest
from graphml.server.options.server_options import RequestLimits, ServerOptions
from graphml.server.protocols import request_body
from graphml.server.requests import request_fields
from graphml.server.requests.request_fields import ChatCompletion
from graphml.server.responses.api_errors import ApiError
from graphml.text.tokenizer import Tokenizer
from tests.server.running_server import Running, running

HEAD = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("part", [1, 2, 3, 7, 1 << 16])
def test_values_keys_and_escapes_are_counted_outside_of_strings(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(request_body, "PART", part)
    rng, none = random.Random(part), RequestLimits(values=0, nested=10**9, escapes=10**9)
    for _ in range(60):
        texts = ["".join(rng.choices('a,"\\[{:é', k=rng.randrange(9))) for _ in range(rng.randrange(1, 4))]
        data = {"k,": texts, "other": {"b\\": [1, 2]}}
        raw = json.dumps(data).encode()
        keys, lists, commas = 3, 4, len(texts) - 1 + 2
        escapes = raw.count(b"\\")
        exact = RequestLimits(values=commas, nested=keys + lists, escapes=escapes)
        request_body.check_counts(raw, exact)
        for less in ({"values": commas - 1}, {"nested": keys + lists - 1}, {"escapes": escapes - 1}):
            with pytest.raises(ApiError, match="the body: at most"):
                request_body.check_counts(raw, replace(exact, **less))
    with pytest.raises(ApiError):
        request_body.check_counts(b"[1,2", none)


def test_a_big_body_is_decoded_by_a_thread_of_its_own(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    convert = request_fields.converted

    def watched(*given: object) -> object:
        names.append(threading.current_thread().name)
        return convert(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(server_app, "converted", watched)
    for size in (10, request_body.SMALL + 1):
        body = {"prompt": "a", "n_predict": 1, "unknown": "x" * size}
        assert server.post("/completion", body).status_code == 200
    assert [name.startswith("graphml-bodies") for name in names] == [False, True]


def test_a_body_of_too_many_values_is_refused(stories: graphml.Model) -> None:
    limits = RequestLimits(values=100_000, nested=1000)
    with running(ServerOptions(parallel=1, n_ctx=64, limits=limits), stories) as found:
        for body in ({"prompt": [1] * 100_002}, {"prompt": "a", "x": [[]] * 50_000}):
            assert found.post("/completion", body).status_code == 413
        ids = {"prompt": [1] * 50_000}  # few enough to be looked at
        assert found.post("/completion", ids).json()["error"]["type"] == "exceed_context_size_error"


TEXT = "a b" * 50_000
ASKING = [
    ("/completion", {"prompt": TEXT}),
    ("/completion", {"prompt": [5, TEXT]}),
    ("/v1/completions", {"prompt": ["a", TEXT]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": TEXT}]}),
    ("/v1/responses", {"input": TEXT}),
    ("/v1/embeddings", {"input": TEXT}),
]


@pytest.mark.parametrize(("path", "body"), ASKING, ids=[f"{path}-{i}" for i, (path, _) in enumerate(ASKING)])
def test_a_text_that_cannot_fit_is_refused_unread(
    server: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    read: list[int] = []
    encode = Tokenizer.encode

    def watched(self: Tokenizer, text: str, *given: bool, **named: bool) -> list[int]:
        read.append(len(text))
        return encode(self, text, *given, **named)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    refused = server.post(path, body)
    assert refused.status_code == 400
    assert "exceeds the available context size" in refused.json()["error"]["message"]
    assert max(read, default=0) < 1000


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"content": "a" * 1001}, "content"),
        ("/tokenize", {"content": ["a" * 600, "a" * 600]}, "content"),
        ("/detokenize", {"tokens": [5] * 101}, "tokens"),
        ("/infill", {"input_prefix": "a" * 1001, "input_suffix": ""}, "input_prefix"),
    ],
)
def test_what_no_context_bounds_is_limited(
    stories: graphml.Model, path: str, body: dict[str, object], field: str
) -> None:
    limits = RequestLimits(tokenized_chars=1000, detokenized=100)
    with running(ServerOptions(parallel=1, n_ctx=64, limits=limits), stories) as found:
        refused = found.post(path, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert found.post("/tokenize", {"content": "a" * 1000}).status_code == 200


def test_all_answers_of_a_request_count_in_the_queue(stories: graphml.Model) -> None:
    with running(ServerOptions(parallel=1, n_ctx=256, limits=RequestLimits(waiting=8)), stories) as found:
        many = {"prompt": ["a", "b", "c"], "n": 3, "n_predict": 1}
        refused = found.post("/completion", many)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        with found.service.access.all_or_none(6):  # of another request
            assert found.post("/completion", {**many, "n": 1}).status_code == 429
            assert found.post("/completion", {"prompt": "a", "n": 2, "n_predict": 1}).status_code == 200
        assert found.post("/completion", {**many, "n": 2}).status_code == 200


@pytest.fixture(scope="module")
def hurried(stories: graphml.Model) -> Iterator[Running]:
    limits = RequestLimits(head_s=0.3, body_s=0.3, body_bytes_per_s=1000)
    with running(ServerOptions(parallel=1, n_ctx=64, limits=limits), stories) as found:
        yield found


@pytest.mark.parametrize(
    "sent",
    [b"POST /comp", HEAD % 5 + b"{", HEAD % 50 + b" " * 40, b"GET /health HTTP/1.1\r\nHost: localhost\r\n"],
    ids=["a head", "a body", "most of a body", "a get"],
)
def test_a_request_that_does_not_come_to_its_end_is_closed(hurried: Running, sent: bytes) -> None:
    with _connected(hurried) as client:
        client.sendall(sent)
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert client.recv(1000) == b""
    with _connected(hurried) as client:  # nor a second one
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + sent)
        answer = b""
        while more := client.recv(1000):
            answer += more
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in answer


def test_a_body_that_comes_slowly_but_steadily_is_read(hurried: Running) -> None:
    body = json.dumps({"prompt": "a", "n_predict": 1, "x": " " * 900}).encode()
    with _connected(hurried) as client:
        client.sendall(HEAD % len(body))
        waiting = threading.Event()
        for begin in range(0, len(body), 100):  # in 0.6 s, at 1,500 bytes a second
            client.sendall(body[begin : begin + 100])
            waiting.wait(0.06)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_does_not_come_in_the_whole_time_for_it_is_closed(stories: graphml.Model) -> None:
    """However fast it comes: it would hold its memory."""
    limits = RequestLimits(body_s=0.1, body_bytes_per_s=10, whole_body_s=0.5)
    options = ServerOptions(parallel=1, n_ctx=64, limits=limits)
    with running(options, stories) as found, _connected(found) as client:
        client.sendall(HEAD % 1_000_000)
        client.settimeout(0.02)
        answer, end = b"", time.monotonic() + 20
        while not answer and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                client.sendall(b" " * 100)
                answer = client.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_connection_is_kept_behind_its_first_request(
    hurried: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.7)  # of a connection without any
    with _connected(hurried) as client:
        for _ in range(2):
            threading.Event().wait(0.5)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                more = client.recv(1000)
                assert more
                answer += more
            assert answer.startswith(b"HTTP/1.1 200 ")


def _connected(server: Running) -> socket.socket:
    address = urlsplit(server.address)
    client = socket.create_connection((address.hostname or "", address.port or 0))
    client.settimeout(20)
    return client


@pytest.mark.parametrize(
    "more", [{}, {"stream": True}, {"response_format": 3}, {"json_schema": {"enum": [1]}}], ids=str
)
def test_no_request_stays_for_the_garbage_collector(server: Running, more: dict[str, Any]) -> None:
    """Which comes after thousands of objects, not after a few bodies of many megabytes."""

    def left() -> list[object]:
        kinds = (ChatCompletion, Generation, EndedRequest, _PlaceInPool)
        return [thing for thing in gc.get_objects() if type(thing) in kinds]

    message = {"role": "user", "content": "Once"}
    gc.collect()
    gc.disable()
    try:
        before = left()  # held, so that none of these goes while the others are counted
        server.post("/v1/chat/completions", {"messages": [message], "max_tokens": 2, **more}).read()
        assert server.at_rest()
        end = time.monotonic() + 10
        while len(left()) > len(before) and time.monotonic() < end:
            time.sleep(0.01)
        assert len(left()) == len(before)
    finally:
        gc.enable()
