"""Grammars and schemas that take long or end what compiles them: nobody else's request waits or fails."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

import graphml
from graphml.sampling.structured import compile_turns, params_structure, tried_structures
from graphml.sampling.structured.compile_turns import LARGE, TURNS
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running

KEYS = {"first": {"Authorization": "Bearer first"}, "second": {"Authorization": "Bearer second"}}
SMALL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def large(number: int) -> dict[str, Any]:
    """Another schema for each number, of 240 KB."""
    return {"enum": [f"value {number} {i:07d}" for i in range(11_000)], "title": "slow"}


def body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": "Once", "n_predict": 3, "json_schema": schema}


@pytest.fixture(scope="module")
def guarded(stories: graphml.Model) -> Iterator[Running]:
    with running(ServerOptions(parallel=4, n_ctx=128, api_keys=tuple(KEYS)), stories) as server:
        yield server


class Slow:
    """Schemas with the title "slow" are compiled until they may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def structure_bytes(self, name: str, text: str, tokens: Any) -> int:
        if '"slow"' in text:
            self.may_go_on.wait(60)
        return 0


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    created = Slow()
    monkeypatch.setattr(params_structure, "structure_bytes", created.structure_bytes)
    yield created
    created.may_go_on.set()
    until(lambda: not (TURNS._waiting or TURNS._running))


def test_eight_large_schemas_of_a_key_hold_no_other_request(guarded: Running, slow: Slow) -> None:
    with ThreadPoolExecutor(8) as clients:
        late = [
            clients.submit(guarded.post, "/completion", body(large(i)), headers=KEYS["first"])
            for i in range(8)
        ]
        until(lambda: len(TURNS._waiting) == 7)  # one of them is compiled
        answers = [guarded.post("/completion", body(SMALL), headers=KEYS[key]) for key in ("second", "first")]
        plain = guarded.post("/completion", {"prompt": "Once", "n_predict": 2}, headers=KEYS["first"])
        assert [answer.status_code for answer in (*answers, plain)] == [200, 200, 200]
        assert not any(request.done() for request in late)
        slow.may_go_on.set()
        assert [request.result(60).status_code for request in late] == [200] * 8


def test_where_too_many_wait_others_are_asked_to_come_again(
    guarded: Running, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_turns, "MOST_OF_ONE", 1)
    with ThreadPoolExecutor(2) as clients:
        for i in range(2):
            clients.submit(guarded.post, "/completion", body(large(20 + i)), headers=KEYS["first"])
        until(lambda: len(TURNS._waiting) == 1)
        refused = guarded.post("/completion", body(large(22)), headers=KEYS["first"])
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "1 grammars and schemas wait to be compiled, 1 of them of this key" in refused.text
        assert guarded.post("/completion", body(SMALL), headers=KEYS["second"]).status_code == 200
        slow.may_go_on.set()


def test_who_leaves_waits_for_no_turn(guarded: Running, slow: Slow) -> None:
    with ThreadPoolExecutor(1) as clients:
        clients.submit(guarded.post, "/completion", body(large(30)), headers=KEYS["first"])
        until(lambda: len(TURNS._running) == 1)
        leaving = httpx2.Client(base_url=guarded.address, timeout=0.3, verify=False)
        with leaving, pytest.raises(httpx2.TimeoutException):
            leaving.post("/completion", json=body(large(31)), headers=KEYS["first"])
        until(lambda: not TURNS._waiting)
        assert len(TURNS._running) == 1
        slow.may_go_on.set()
    assert guarded.at_rest()


def test_schemas_of_tools_wait_for_their_turn_too(guarded: Running, slow: Slow) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": large(40)}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    with ThreadPoolExecutor(2) as clients:
        clients.submit(guarded.post, "/completion", body(large(41)), headers=KEYS["first"])
        until(lambda: len(TURNS._running) == 1)
        late = clients.submit(guarded.post, "/apply-template", chat, headers=KEYS["first"])
        until(lambda: len(TURNS._waiting) == 1)
        assert TURNS._waiting[0].size >= LARGE
        slow.may_go_on.set()
        assert late.result(60).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit the time alone")
def test_a_schema_that_ends_its_process_is_refused_and_the_server_lives(
    guarded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tried_structures, "MEMORY", 64 << 20)
    exponential = {"allOf": [{"type": "string", "pattern": f".{{{i}}}[abc].{{{i}}}"} for i in range(3, 40)]}
    refused = guarded.post("/completion", body(exponential), headers=KEYS["first"])
    assert refused.status_code == 400
    assert "its process ended" in json.loads(refused.text)["error"]["message"]
    assert guarded.post("/completion", body(SMALL), headers=KEYS["first"]).status_code == 200
