"""Who may ask, how much, and what is left behind by those who leave."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

import graphml
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.runner import Runner
from graphml.server import server_app
from graphml.server.engine import engine_access
from graphml.server.options.api_keys import ApiKeys, keys_in
from graphml.server.options.server_options import RequestLimits, ServerOptions
from graphml.server.protocols import llama_tokens
from tests.server.running_server import Running, running

KEY = {"Authorization": "Bearer secret"}
HEALTHY = ("/health", "/v1/health", "/ping", "/healthz", "/livez", "/readyz")
ROUTES = ["/v1/models", "/props", "/slots", "/metrics", "/lora-adapters", "/nothing", "/engine/state"]


@pytest.fixture(scope="module")
def guarded(stories: graphml.Model) -> Iterator[Running]:
    limits = RequestLimits(body_bytes=10_000, waiting=3)
    options = ServerOptions(parallel=2, n_ctx=256, metrics=True, api_keys=("other", "secret"), limits=limits)
    with running(options, stories) as found:
        yield found


@pytest.mark.parametrize("path", ROUTES)
def test_without_a_key_nothing_is_routed(guarded: Running, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer secre"}, {"X-Api-Key": "Secret"}):
        refused = guarded.http.get(path, headers=headers)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert guarded.http.get(path, headers=KEY).status_code != 401


def test_health_and_the_page_need_no_key(guarded: Running) -> None:
    assert {guarded.http.get(path).status_code for path in HEALTHY} == {200}
    assert "<!doctype html>" in guarded.http.get("/").text.lower()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/sw.js", "text/javascript"),
        ("/manifest.webmanifest", "application/manifest+json"),
        ("/favicon.ico", "image/svg+xml"),
        ("/_app/version.json", "application/json"),
    ],
)
def test_what_pages_ask_for_at_the_root_needs_no_key(guarded: Running, path: str, kind: str) -> None:
    found = guarded.http.get(path, headers={"Authorization": ""})
    assert (found.status_code, found.headers["content-type"].split(";")[0]) == (200, kind)


def test_a_large_body_is_refused_with_and_without_its_length(guarded: Running) -> None:
    body = b'{"prompt": "' + b"a" * 20_000 + b'"}'
    assert guarded.http.post("/completion", content=body, headers=KEY).status_code == 413
    chunks = (body[i : i + 4_000] for i in range(0, len(body), 4_000))
    assert guarded.http.post("/completion", content=chunks, headers=KEY).status_code == 413


FOREIGN = (
    {"Origin": "http://elsewhere.example", "Content-Type": "text/plain"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"},
    {"Sec-Fetch-Site": "none", "Origin": "https://elsewhere.example"},
)


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_site_has_no_effect(server: Running, headers: dict[str, str]) -> None:
    posts = sorted(
        {path for method, paths, _ in server_app.HANDLERS if method == "POST" for path in paths.split()}
    )
    for path in (*(path.replace("{slot:int}", "0").replace("{id}", "x") for path in posts), "/models/load"):
        refused = server.http.post(path, content=b"no JSON, which nobody reads", headers=headers)
        assert refused.status_code == 403, path
    assert server.http.delete("/v1/stream?conv_id=x", headers=headers).status_code == 403
    for path in ("/v1/stream?conv_id=x", "/engine/state"):
        assert server.http.get(path, headers=headers).status_code == 403
    for path in ("/", "/health", "/v1/models"):
        assert server.http.get(path, headers=headers).status_code == 200


def test_programs_own_pages_and_allowed_origins_may_ask(stories: graphml.Model, server: Running) -> None:
    own = {"Origin": server.address}
    for headers in ({}, own, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert server.post("/tokenize", {"content": "a"}, headers=headers).status_code == 200, headers
    options = ServerOptions(parallel=1, n_ctx=64, cors_origins=("https://page.example", "localhost"))
    with running(options, stories) as found:
        for origin, status in (
            ("https://page.example", 200),
            ("http://localhost:3000", 200),
            ("https://other.example", 403),
        ):
            headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
            answer = found.post("/tokenize", {"content": "a"}, headers=headers)
            assert answer.status_code == status, origin


def test_prefixes_are_not_shared_between_keys(guarded: Running) -> None:
    def cached(key: str) -> int:
        body = {"prompt": "Once upon a time there was " * 8, "n_predict": 1}
        found = guarded.post("/completion", body, headers={"X-Api-Key": key}).json()
        count: int = found["timings"]["cache_n"]
        return count

    assert cached("secret") == 0
    assert cached("secret") > 0
    assert cached("other") == 0


def test_pages_of_other_origins_may_ask_only_where_a_key_is_needed(guarded: Running, server: Running) -> None:
    origin = {"Origin": "http://elsewhere.example"}
    allowed = guarded.http.options("/completions", headers=origin).headers["Access-Control-Allow-Origin"]
    assert allowed == origin["Origin"]
    assert "Access-Control-Allow-Origin" not in server.http.options("/completions", headers=origin).headers


def test_another_host_is_refused(server: Running) -> None:
    assert server.http.get("/props", headers={"Host": "evil.example"}).status_code == 403
    assert server.http.get("/props", headers={"Host": "localhost:8080"}).status_code == 200


def test_requests_beyond_the_queue_are_told_to_come_later(
    guarded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": "a", "n_predict": 1}
    assert guarded.post("/completion", body, headers=KEY).status_code == 200
    with monkeypatch.context() as patched:
        patched.setattr(guarded.service.access, "queued", 3)
        refused = guarded.post("/completion", body, headers=KEY)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert guarded.post("/completion", body, headers=KEY).status_code == 200


def test_clients_that_leave_leave_nothing_behind(server: Running) -> None:
    address = urlsplit(server.address)
    rng = random.Random(1)
    for index in range(24):
        stream = b"true" if index % 2 else b"false"
        body = b'{"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true, "stream": %s}' % stream
        head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection((address.hostname or "", address.port or 0)) as client:
            client.sendall((head + body)[: rng.choice([len(head), 9999, 9999, 9999])])
            client.settimeout(rng.choice([0.001, 0.01, 0.03]))
            with contextlib.suppress(TimeoutError):
                client.recv(rng.choice([1, 4000]))
    assert server.at_rest()
    assert server.post("/completion", {"prompt": "Once", "n_predict": 1}).status_code == 200


def test_keys_are_read_again_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old\nboth\n")
    keys = ApiKeys(("given",), path, keys_in(path))
    owner = keys.owner_of("both")
    assert owner
    assert "both" not in owner
    path.write_text("new\nboth\n")
    assert keys.owner_of("new") is None
    for text in ("new\nboth\n", "# none\n"):
        path.write_text(text)
        keys.reload()
        assert keys.owner_of("old") is None
        assert keys.owner_of("both") == owner  # so that its prefixes are found again
        assert len({keys.owner_of(one) for one in ("given", "new", "both")} - {None}) == 3
    path.unlink()
    keys.reload()
    assert keys.owner_of("new")


def test_a_draining_server_refuses(stories: graphml.Model) -> None:
    with running(replace(ServerOptions(), parallel=1, n_ctx=64), stories) as found:
        found.models.drain()
        assert found.http.get("/health").status_code == 503
        refused = found.post("/completion", {"prompt": "a"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/responses"])
def test_a_client_that_leaves_while_its_prompt_is_read_leaves_nothing_behind(
    server: Running, path: str
) -> None:
    address, text = urlsplit(server.address), "Once upon a time there was " * 14
    asked = {"prompt": text, "input": text, "messages": [{"role": "user", "content": text}]}
    body = {**asked, "stream": True, "return_progress": True, "ignore_eos": True, "cache_prompt": False}
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        client.sendall(head + raw)
        client.recv(200)
    assert server.at_rest(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_thread_ends_fails_its_requests_and_is_told(
    stories: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is raised between two steps ends the thread; an error within a step is that step's alone."""
    plan, left = StepLoop._next_plan, [3]

    def failing(loop: StepLoop) -> StepPlan | None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("on purpose")
        return plan(loop)

    with running(replace(ServerOptions(), parallel=2, n_ctx=64), stories) as found:
        assert found.http.get("/health").status_code == 200
        monkeypatch.setattr(StepLoop, "_next_plan", failing)
        events = found.events("/completion", {"prompt": "Once", "n_predict": 50, "ignore_eos": True})
        assert [one for one in events if "content" in one]
        assert events[-1]["error"]["code"] == 500
        assert "on purpose" not in str(events[-1])  # which is for the log
        assert found.http.get("/health").status_code == 503
        assert found.post("/completion", {"prompt": "a"}).status_code == 500
        assert not found.service.access.active


def test_an_error_within_a_step_is_of_its_requests(
    stories: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("on purpose")

    with running(replace(ServerOptions(), parallel=2, n_ctx=64), stories) as found:
        with monkeypatch.context() as patched:
            patched.setattr(Runner, "run", failing)
            assert found.post("/completion", {"prompt": "a", "n_predict": 2}).status_code == 500
        assert found.http.get("/health").status_code == 200
        assert found.post("/completion", {"prompt": "a", "n_predict": 2}).status_code == 200
        assert found.at_rest()


def test_a_server_is_dead_only_where_what_runs_makes_no_step(
    stories: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(replace(ServerOptions(), parallel=1, n_ctx=64), stories) as found:
        access, now = found.service.access, time.monotonic()
        stats = access.stats()
        assert stats is not None
        assert access.state() == "ok"
        for later, n_running, n_steps, said in [
            (100, 1, 0, "ok"),  # it has begun since nobody looked
            (120, 1, 0, "ok"),
            (131, 1, 0, "dead"),
            (132, 1, 1, "ok"),
            (200, 0, 1, "ok"),
        ]:
            seen = replace(stats, running=n_running, n_steps=n_steps)
            monkeypatch.setattr(access, "stats", lambda seen=seen: seen)
            clock = SimpleNamespace(monotonic=lambda later=later: now + later)
            monkeypatch.setattr(engine_access, "time", clock)
            assert access.state() == said, later
        monkeypatch.undo()


def test_a_request_whose_prompt_is_being_encoded_is_waited_for(
    stories: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(replace(ServerOptions(), parallel=1, n_ctx=64), stories) as found:
        began, goes_on, access = threading.Event(), threading.Event(), found.service.access

        def slow(*_: object) -> list[int]:
            began.set()
            goes_on.wait(20)
            return [1, 2]

        monkeypatch.setattr(llama_tokens, "_tokens", slow)
        asking = threading.Thread(target=found.post, args=("/tokenize", {"content": "a"}))
        asking.start()
        try:
            assert began.wait(20)
            assert access.busy
        finally:
            goes_on.set()
            asking.join()
        assert not access.busy
