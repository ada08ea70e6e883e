"""Ids of requests from header to log to trace, lines of the log, and spans as a collector gets them."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx2
import pytest

import graphml
from graphml.errors import UsageError
from graphml.server.observing.trace_export import TraceExport
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running
from tests.stories import STORIES

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ASKED = {"prompt": "Once upon a time", "n_predict": 5, "temperature": 0}


@contextmanager
def collector() -> Iterator[tuple[str, queue.Queue[tuple[str, Any]]]]:
    """The address of a collector, and the paths and bodies that it gets."""
    got: queue.Queue[tuple[str, Any]] = queue.Queue()

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.put((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Taking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def spans_in(body: Any) -> list[dict[str, Any]]:
    (resource,) = body["resourceSpans"]
    return list(resource["scopeSpans"][0]["spans"])


def test_an_id_is_given_back_or_made(server: Running) -> None:
    given = server.http.get("/props", headers={"X-Request-Id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    made = [
        server.http.get(path, headers={"X-Request-Id": "not one\tid"}).headers["x-request-id"]
        for path in ("/props", "/nowhere")
    ]
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)
    assert made[0] != made[1]


def test_a_process_logs_each_request_without_its_contents_and_traces_it() -> None:
    with collector() as (address, got):
        flags = f"-m {STORIES} --port 0 -c 256 -np 2 -t 1 --log-requests --otlp-endpoint {address}".split()
        process = subprocess.Popen(
            [sys.executable, "-m", "graphml", "serve", *flags], stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            found = re.search(r"at (http://127.0.0.1:\d+)", process.stderr.readline())
            assert found is not None
            headers = {"X-Request-Id": "mine-1", "traceparent": f"00-{TRACE}-{PARENT}-01"}
            with httpx2.Client(base_url=found[1], timeout=60) as http:
                assert http.get("/health").status_code == 200
                asked = http.post("/completion", json=ASKED, headers=headers).json()
                assert http.post("/completion", json={"n_predict": "x"}).status_code == 400
            process.terminate()
            _, log = process.communicate(timeout=30)
        finally:
            process.kill()
        _, body = got.get(timeout=10)
    first, second = log.splitlines()
    n_prompt = asked["tokens_evaluated"]
    assert re.fullmatch(rf"\S+Z mine-1 POST /completion 200 \d+\.\d+s prompt={n_prompt} generated=5", first)
    assert re.fullmatch(r"\S+Z [0-9a-f]{32} POST /completion 400 \d+\.\d+s", second)
    assert "Once" not in log
    own = spans_in(body)[0]
    assert (own["traceId"], own["parentSpanId"]) == (TRACE, PARENT)


def test_a_span_has_its_phases_in_order(stories: graphml.Model) -> None:
    with collector() as (address, got):
        export = TraceExport(f"{address}/collect/")
        options = ServerOptions(parallel=2, n_ctx=128)
        with running(options, stories, listeners=[export]) as server:
            server.post("/completion", ASKED, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
            server.post("/completion", ASKED, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
            server.post("/completion", {"prompt": 5.5}, headers={"traceparent": "nonsense"})
        export.close()
        spans = []
        while not got.empty():
            path, body = got.get()
            assert path == "/collect"
            spans += spans_in(body)
    own, work, *phases, refused = spans  # of the second, which its caller does not record, there is none
    assert [one["name"] for one in phases] == ["make the prompt", "read the prompt", "generate"]
    assert work["parentSpanId"] == own["spanId"]
    assert all(one["parentSpanId"] == work["spanId"] and one["traceId"] == TRACE for one in phases)
    times = [int(own["startTimeUnixNano"])]
    for one in phases:
        assert int(one["startTimeUnixNano"]) == times[-1]
        times.append(int(one["endTimeUnixNano"]))
    assert times == sorted(times)
    assert times[-1] == int(own["endTimeUnixNano"])
    about = {one["key"]: next(iter(one["value"].values())) for one in own["attributes"]}
    assert about["http.response.status_code"] == "200"
    assert refused["name"] == "POST /completion"
    assert refused["parentSpanId"] == ""
    assert refused["traceId"] != TRACE


def test_a_collector_that_is_not_there_holds_nobody_up(
    stories: graphml.Model, caplog: pytest.LogCaptureFixture
) -> None:
    export = TraceExport("http://127.0.0.1:9")
    with running(ServerOptions(parallel=1, n_ctx=64), stories, listeners=[export]) as server:
        assert server.post("/completion", ASKED).status_code == 200
    export.close()
    assert "traces cannot be sent" in caplog.text
    with pytest.raises(UsageError, match="--otlp-endpoint: wanted an address"):
        TraceExport("127.0.0.1:4318")
