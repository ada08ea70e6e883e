"""Requests that fail beside others: what a good server is found to be, and what a bad one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import graphml
from benchmarks import server_faults
from benchmarks.server_faults import Found, main, report, send_faults
from graphml.bench.server_load import ServerLoad
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import running
from tests.stories import STORIES

LOAD = ServerLoad(clients=8, requests=1, n_prompt=12, n_gen=12)


def test_a_server_answers_right_beside_clients_that_leave() -> None:
    options = ServerOptions(parallel=4, n_ctx=256, metrics=True)
    with (
        graphml.load(STORIES, "cpu", threads=1, n_batch=64, deterministic=True) as model,
        running(options, model) as server,
    ):
        found = send_faults(server.address, LOAD, 90)
        assert server.at_rest()
    assert found.passed, found
    assert found.right > 30
    assert found.left > 15
    assert found.malformed >= 2
    assert found.right + found.left + found.malformed == 90
    assert found.at_rest is True
    assert found.end is not None
    assert found.warm is not None


class Bad(BaseHTTPRequestHandler):
    """A server that answers something else each time, and fails at times."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"].replace("x", "0")))
        number = next(self.server.numbers)  # type: ignore[attr-defined]
        status = 500 if number > 20 and number % 5 == 0 else 200
        body = b'{"choices": [{"message": {"content": "%d"}}]}' % number
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        body = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bad() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bad) as server:
        server.numbers = itertools.count()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_wrong_answers_errors_and_what_is_left_behind_are_found(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_faults, "REST_S", 0.1)
    found = send_faults(bad, LOAD, 60)
    assert not found.passed
    assert found.wrong
    assert found.errors["RuntimeError: status 500"]
    assert any("without its end" in one for one in found.errors)
    assert found.at_rest is False
    said = "".join(report(found))
    assert "| NO |" in said
    assert "--deterministic" in said
    assert "--deterministic" not in "".join(report(replace(found, wrong=0)))


def test_the_command_fails_where_answers_are_wrong(
    bad: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_faults, "REST_S", 0.1)
    assert main([bad, "--requests", "3", "--clients", "1", "-p", "4", "-n", "4"]) == 1
    assert "| NO |" in capsys.readouterr().out


def test_the_report_tells_what_is_not_known() -> None:
    text = "".join(report(Found(right=3, seconds=1.0)))
    assert "| 3 | 0 | 0 | 0 | 0 | 1.0 | unknown: no metrics | unknown |" in text
