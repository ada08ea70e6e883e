"""Faults that servers of models are known for, tried over HTTP; docs/operating.md has a table of them all."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import graphml
from graphml.server.engine.service import SharedParts
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running

ROOT = Path(__file__).parents[2]
TEXT = "Once upon a time"
ENDLESS = {"prompt": TEXT, "n_predict": -1, "ignore_eos": True, "stream": True}
HOST = b"Host: localhost\r\n"


def connected(server: Running) -> socket.socket:
    address = urlsplit(server.address)
    return socket.create_connection((address.hostname or "", address.port or 0), timeout=20)


def request(path: str, body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (path.encode(), HOST, len(raw), raw)


def test_a_seed_gives_its_text_alone_and_among_others(server: Running) -> None:
    asked: dict[str, Any] = {"prompt": TEXT, "n_predict": 24, "seed": 11, "temperature": 1.3, "n": 1}
    alone = server.post("/completion", asked).json()["content"]
    others = [{**asked, "prompt": f"{index} dogs", "seed": -1} for index in range(7)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: server.post("/completion", one).json(), [*others, asked]))
    assert found[-1]["content"] == alone
    assert len({one["content"] for one in found}) == 8


def test_forty_prompts_at_a_time_have_the_answers_that_they_have_alone(server: Running) -> None:
    asked = [
        {"prompt": f"{TEXT} there was {number}", "n_predict": 6, "temperature": 0} for number in range(40)
    ]
    alone = [server.post("/completion", {**one, "cache_prompt": False}).json() for one in asked]
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda one: server.post("/completion", one).json(), asked))
    assert [one["prompt"] for one in found] == [one["prompt"] for one in alone]
    assert [one["content"] for one in found] == [one["content"] for one in alone]


@pytest.mark.parametrize(
    "form",
    [
        {"grammar": "root ::= root"},
        {"grammar": "root ::= a"},
        {"grammar": 'root ::= ("a" | "a" root) {1,99999999}'},
        {"regex": "(a+"},
        {"regex": "((a{0,500}){0,500}){0,500}"},
        {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        {"json_schema": {"type": "string", "pattern": "(?=a)b"}},
    ],
    ids=["endless", "unknown", "repeated", "broken", "exponential", "recursive", "looks ahead"],
)
def test_a_form_that_cannot_be_harms_no_neighbour(server: Running, form: dict[str, Any]) -> None:
    with server.http.stream("POST", "/completion", json={**ENDLESS, "n_predict": 60}) as beside:
        events = beside.iter_lines()
        assert next(events).startswith("data: ")
        answer = server.post("/completion", {"prompt": "a", "n_predict": 4, **form})
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert answer.json()["error"]["type"] == "invalid_request_error"
        last = [line for line in events if line.startswith("data: ")][-1]
    assert json.loads(last[6:])["tokens_predicted"] == 60
    assert server.post("/completion", {"prompt": "a", "n_predict": 1}).status_code == 200


@pytest.mark.parametrize(
    ("path", "field"),
    [("/tokenize", "content"), ("/completion", "prompt"), ("/v1/chat/completions", "messages")],
)
def test_health_answers_while_27_megabytes_come(server: Running, path: str, field: str) -> None:
    text = "word " * (27_000_000 // 5)
    body = {field: [{"role": "user", "content": text}] if field == "messages" else text, "max_tokens": 1}
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(server.post(path, body).status_code))
    asking.start()
    n_healthy = 0
    while asking.is_alive():
        n_healthy += server.http.get("/health").status_code == 200
    asking.join()
    assert answers == [400]
    assert n_healthy > 0


def test_text_of_byte_tokens_is_never_half_a_character(server: Running) -> None:
    text = "🤗é媽\u200d👩🏽"
    asked = {"prompt": TEXT, "n_predict": 60, "grammar": f'root ::= "{text}"', "stream": True}
    found = [one["content"] for one in server.events("/completion", asked)]
    assert "".join(found).strip() == text
    assert "\ufffd" not in "".join(found)
    assert len([one for one in found if one]) > 3


def test_who_does_not_read_is_left_and_others_are_not(stories: graphml.Model) -> None:
    with running(ServerOptions(parallel=2, n_ctx=512, timeout=0.5), stories) as server:
        client = connected(server)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.sendall(request("/completion", {**ENDLESS, "n_probs": 40, "n_predict": 500}))
        for _ in range(3):
            assert server.post("/completion", {"prompt": "a", "n_predict": 2}).status_code == 200
        assert server.at_rest()
        client.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40,
        b"GET\r\n\r\n",
        b"POST /completion HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\n",
        b"POST /completion HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /completion HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 300_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + HOST + b"Bad Header\r\n\r\n",
        b"\r\n" * 50 + b"\x00\r\n\r\n",
    ],
    ids=["tls", "no path", "negative", "two lengths", "chunk", "long head", "no colon", "zero"],
)
def test_what_is_no_http_is_refused_and_the_next_one_answered(server: Running, sent: bytes) -> None:
    with connected(server) as client:
        answer = b""
        with contextlib.suppress(OSError):  # where it ended the connection before all was sent or read
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while more := client.recv(4096):
                answer += more
    assert re.match(rb"HTTP/1.1 4\d\d |$", answer), answer[:80]
    assert server.http.get("/health").status_code == 200
    assert server.at_rest()


@pytest.mark.parametrize("phase", ["encoding", "waiting", "reading", "generating", "ended"])
def test_a_client_that_leaves_in_any_phase_leaves_nothing_behind(server: Running, phase: str) -> None:
    beside = [connected(server) for _ in range(4 if phase == "waiting" else 0)]
    for one in beside:  # they hold all slots
        one.sendall(request("/completion", ENDLESS))
        assert one.recv(100).startswith(b"HTTP/1.1 200 ")
    texts = {"reading": f"{TEXT} " * 60, "encoding": "word " * 100_000}
    body = {**ENDLESS, "prompt": texts.get(phase, TEXT), "cache_prompt": False}
    if phase == "ended":
        body |= {"n_predict": 1}
    with connected(server) as client:
        client.sendall(request("/completion", body))
        if phase in ("generating", "ended"):
            while b"data: " not in client.recv(4096):
                pass
    for one in beside:
        one.close()
    assert server.at_rest()
    assert server.post("/completion", {"prompt": "a", "n_predict": 1}).status_code == 200


STREAMED = {
    "/completion": {"prompt": TEXT},
    "/v1/completions": {"prompt": TEXT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/responses": {"input": TEXT},
}


@pytest.mark.parametrize("path", STREAMED)
def test_an_answer_whose_response_cannot_be_made_is_not_computed(
    server: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no response")

    monkeypatch.setattr(SharedParts, "stream", fails)
    assert server.post(path, {**STREAMED[path], "stream": True, "max_tokens": 8}).status_code == 500
    assert server.at_rest(2)


def test_the_table_of_faults_names_tests_that_there_are() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    rows = re.findall(r"`(tests/[\w/]+\.py)`", page[page.index("## Faults that are tried") :])
    assert len(set(rows)) > 15
    assert [one for one in rows if not (ROOT / one).is_file()] == []
