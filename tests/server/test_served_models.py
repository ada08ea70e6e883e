"""Several models at once: requests choose by name on every protocol, and models load and leave in time."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

import graphml
from graphml.server.engine.engine_access import EngineAccess
from graphml.server.engine.service import Service
from graphml.server.options.api_keys import keys_in
from graphml.server.options.model_sources import LoadableModel, folder_models
from graphml.server.options.server_options import RequestLimits, ServerOptions
from tests import tiny_model
from tests.server.running_server import Running, running
from tests.stories import STORIES

ENDLESS = {"prompt": "ab", "n_predict": 400, "ignore_eos": True, "temperature": 0}
SHORT = {"prompt": "ab", "n_predict": 2, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "ab", "max_tokens": 2},
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "ab", "max_output_tokens": 2},
    "/api/chat": {"messages": CHAT["messages"], "options": {"num_predict": 2}, "stream": False},
    "/api/generate": {"prompt": "ab", "options": {"num_predict": 2}, "stream": False},
    "/completion": SHORT,
}
"""Requests whose answers say their model."""


class _Loads:
    """Counts loads, and holds those of a name back until `go_on`."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.held = ""
        self.began, self.go_on = threading.Event(), threading.Event()

    def open(self, path: Path) -> graphml.Model:
        self.count[path.stem] += 1
        if path.stem == self.held:
            self.began.set()
            assert self.go_on.wait(20)
        return graphml.load(path, "cpu", threads=1, n_batch=64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate("abc"):
        tiny_model.write(tmp_path / f"{name}.gguf", seed=number, n_ctx=512)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    return tmp_path


@pytest.fixture
def loads() -> _Loads:
    return _Loads()


def _sources(folder: Path, options: ServerOptions, loads: _Loads) -> Callable[[], dict[str, LoadableModel]]:
    def listed() -> dict[str, LoadableModel]:
        return {
            name: LoadableModel(options, lambda path=path: path, loads.open, lambda path: 10)  # type: ignore[misc]
            for name, path in folder_models(folder).items()
        }

    return listed


@pytest.fixture
def serve(folder: Path, loads: _Loads) -> Iterator[Callable[..., Running]]:
    """Starts servers of the folder."""
    with ExitStack() as stack:

        def start(budget: int | None = None, **more: Any) -> Running:
            fields = {"parallel": 2, "n_ctx": 512, "metrics": True, "models_dir": folder, **more}
            options = ServerOptions(**fields)
            sources = _sources(folder, options, loads)
            return stack.enter_context(running(options, None, sources=sources, budget=budget))

        yield start


def _states(server: Running) -> dict[str, Any]:
    data = server.http.get("/v1/models").json()["data"]
    return {entry["id"]: entry["status"] for entry in data}


def _until(reached: Callable[[], bool]) -> None:
    for _ in range(1000):
        if reached():
            return
        time.sleep(0.01)
    raise AssertionError("not reached")


def _model_of(answer: dict[str, Any]) -> str:
    name: str = answer["model"]
    return name


@pytest.mark.parametrize("path", PROTOCOLS)
def test_each_protocol_reaches_the_model_that_it_names(serve: Callable[..., Running], path: str) -> None:
    server = serve()
    for name in ("a", "b", "a"):
        answer = server.post(path, {**PROTOCOLS[path], "model": name})
        assert answer.status_code == 200, answer.text
        assert _model_of(answer.json()) == name
    assert {name for name, state in _states(server).items() if state["value"] == "loaded"} == {"a", "b"}


def test_other_paths_take_the_model_from_the_query_or_the_body(serve: Callable[..., Running]) -> None:
    server = serve()
    for name in ("a", "b"):
        assert server.post(f"/completion?model={name}", SHORT).json()["model"] == name
    for name in ("a", "b"):
        assert server.http.get(f"/props?model={name}").json()["model_alias"] == name
        assert len(server.http.get(f"/slots?model={name}").json()) == 2
        assert server.post("/tokenize", {"model": name, "content": "ab"}).json()["tokens"]
        assert server.post("/api/show", {"name": name}).status_code == 200
    assert server.http.get("/slots").status_code == 400  # of which?
    assert server.http.get("/props").json()["role"] == "router"
    assert "llamacpp:" in server.http.get("/metrics?model=a").text
    assert {x["name"] for x in server.http.get("/api/tags").json()["models"]} >= {"a", "b", "c"}


def test_streams_of_two_models_run_at_once(serve: Callable[..., Running]) -> None:
    server = serve()
    alone = {name: server.post("/completion", {**ENDLESS, "model": name}).json()["content"] for name in "ab"}
    assert alone["a"] != alone["b"]
    texts = dict.fromkeys("ab", "")
    with (
        server.http.stream("POST", "/completion", json={**ENDLESS, "model": "a", "stream": True}) as first,
        server.http.stream("POST", "/completion", json={**ENDLESS, "model": "b", "stream": True}) as second,
    ):
        streams = {"a": first.iter_lines(), "b": second.iter_lines()}
        both = 0
        while streams:
            both += len(streams) == 2
            for name in list(streams):
                data = next(streams[name], None)
                if data is None:
                    del streams[name]
                elif data.startswith("data: "):
                    texts[name] += json.loads(data[6:])["content"]
        assert both > 10
    assert texts == alone


def test_the_least_recently_used_model_leaves_once_its_answers_end(serve: Callable[..., Running]) -> None:
    server = serve(budget=20)
    server.post("/completion", {**SHORT, "model": "a"})
    body = {**ENDLESS, "model": "b", "stream": True}
    with server.http.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.post("/completion", {**SHORT, "model": "c"}).status_code == 200  # a was idle
        assert _states(server)["a"] == {"value": "unloaded"}
        assert _states(server)["b"] == {"value": "loaded"}
        assert list(lines)
    assert server.post("/completion", {**SHORT, "model": "a"}).status_code == 200
    assert _states(server)["b"] == {"value": "unloaded"}
    too_large = serve(budget=5).post("/completion", {**SHORT, "model": "a"})
    assert too_large.status_code == 400


def test_at_most_so_many_models_are_loaded(serve: Callable[..., Running]) -> None:
    server = serve(models_max=1)
    for name in "abc":
        assert server.post("/completion", {**SHORT, "model": name}).status_code == 200
        loaded = [name for name, state in _states(server).items() if state["value"] == "loaded"]
        assert loaded == [name]


def test_requests_for_a_model_that_loads_share_one_load(serve: Callable[..., Running], loads: _Loads) -> None:
    server, statuses = serve(), []
    loads.held = "a"
    asking = [
        threading.Thread(
            target=lambda: statuses.append(server.post("/completion", {**SHORT, "model": "a"}).status_code)
        )
        for _ in range(3)
    ]
    for thread in asking:
        thread.start()
    assert loads.began.wait(20)
    assert _states(server)["a"] == {"value": "loading"}
    assert server.post("/completion", {**SHORT, "model": "b"}).status_code == 200  # meanwhile
    loads.go_on.set()
    for thread in asking:
        thread.join()
    assert statuses == [200] * 3
    assert loads.count["a"] == 1


def test_a_load_that_fails_says_so_and_may_be_tried_again(
    serve: Callable[..., Running], folder: Path
) -> None:
    server = serve()
    for _ in range(2):
        refused = server.post("/completion", {**SHORT, "model": "broken"})
        assert refused.status_code == 400
        assert str(folder) not in refused.text
        assert _states(server)["broken"] == {"value": "unloaded", "failed": True, "exit_code": 1}
    tiny_model.write(folder / "broken.gguf")
    assert server.post("/models/load", {"model": "broken"}).json() == {"success": True}
    assert _states(server)["broken"] == {"value": "loaded"}


def test_an_unload_waits_for_running_answers(serve: Callable[..., Running]) -> None:
    server, statuses = serve(), []
    body = {**ENDLESS, "model": "a", "stream": True}
    with server.http.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        service = server.models.last("a")
        assert isinstance(service, Service)
        asking = threading.Thread(
            target=lambda: statuses.append(server.post("/models/unload", {"model": "a"}).status_code)
        )
        asking.start()
        _until(lambda: server.models.room.entries["a"].status == "unloading")
        assert not service.model.executor.closed
        assert '"stop":true' in [line for line in lines if line][-1]
    asking.join()
    assert statuses == [200]
    assert service.model.executor.closed
    assert _states(server)["a"] == {"value": "unloaded"}
    assert server.post("/models/unload", {"model": "a"}).status_code == 400
    assert server.http.get("/v1/models/a").json()["meta"]["n_ctx_train"] == 512  # still told


@pytest.mark.parametrize("name", ["none", "../a", "a/../a.gguf", "{folder}/a.gguf", "inner", "", "."])
def test_a_name_is_one_of_the_list_and_never_a_path(
    serve: Callable[..., Running], folder: Path, loads: _Loads, name: str
) -> None:
    (folder / "inner").mkdir()
    server, name = serve(), name.format(folder=folder)
    for path, body in (("/models/load", {}), ("/completion", SHORT), ("/v1/messages", CHAT)):
        assert server.post(path, {**body, "model": name}).status_code == (404 if name else 400), path
    assert not loads.count


def test_an_unknown_model_is_not_found_in_each_protocol(serve: Callable[..., Running]) -> None:
    server, shown = serve(), "Field 'model': there is no model 'gpt-4o'; there are a, b, broken, c; "
    answer = server.post("/v1/chat/completions", {**CHAT, "model": "gpt-4o"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(shown)
    answer = server.post("/v1/messages", {**CHAT, "model": "gpt-4o"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    answer = server.post("/api/chat", {"model": "gpt-4o", "messages": []})
    assert (answer.status_code, answer.json()["error"][: len(shown)]) == (404, shown)


def test_a_request_loads_nothing_where_that_is_off(serve: Callable[..., Running], loads: _Loads) -> None:
    server = serve()
    assert server.post("/completion?autoload=false", {**SHORT, "model": "a"}).status_code == 400
    server = serve(models_autoload=False)
    assert server.post("/completion", {**SHORT, "model": "a"}).status_code == 400
    assert not loads.count
    assert server.post("/completion?autoload=true", {**SHORT, "model": "a"}).status_code == 200
    assert server.post("/models/load", {"model": "b"}).status_code == 200
    assert server.post("/completion", {**SHORT, "model": "b"}).status_code == 200


def test_models_need_an_admin_and_are_not_loaded_by_default(server: Running, folder: Path) -> None:
    for path in ("/models/load", "/models/unload"):
        assert server.post(path, {"model": "a"}).status_code == 501
    path = folder / "keys"
    path.write_text("user\nroot admin=1\n")
    options = ServerOptions(models_dir=folder, api_keys=("own",), file_keys=keys_in(path), n_ctx=64)
    with running(options, None, sources=_sources(folder, options, _Loads())) as keyed:
        for key, status in (("user", 403), ("root", 200), ("own", 200)):
            answer = keyed.post("/models/load", {"model": "a"}, headers={"X-Api-Key": key})
            assert answer.status_code == status, key
        assert keyed.http.get("/v1/models?reload=1", headers={"X-Api-Key": "user"}).status_code == 403
        asked = keyed.post("/completion", {**SHORT, "model": "a"}, headers={"X-Api-Key": "user"})
        assert asked.status_code == 200


def test_limits_count_the_answers_of_all_models(serve: Callable[..., Running]) -> None:
    server = serve(limits=RequestLimits(waiting=2))
    for name in "ab":
        assert server.post("/completion", {**SHORT, "model": name}).status_code == 200
    of_a = server.models.last("a")
    assert isinstance(of_a, Service)
    of_a.access.queued += 2
    assert server.post("/completion", {**SHORT, "model": "b"}).status_code == 429
    of_a.access.queued -= 2
    two = {"prompt": "ab", "max_tokens": 2, "n": 2, "model": "b"}
    with of_a.access.all_or_none(1):
        assert server.post("/v1/completions", two).status_code == 429
    assert server.post("/v1/completions", two).status_code == 200
    assert server.post("/completion", {**SHORT, "model": "b"}).status_code == 200


def test_what_is_of_the_server_needs_no_model(serve: Callable[..., Running], loads: _Loads) -> None:
    server = serve()
    for path in (
        "/metrics",
        "/health",
        "/v1/models",
        "/props",
        "/api/tags",
        "/api/ps",
        "/api/version",
        "/version",
    ):
        assert server.http.get(path).status_code == 200, path
    assert server.http.delete("/v1/responses/resp_x").status_code == 404
    assert server.http.get("/v1/stream?conv_id=none").status_code == 404
    assert not loads.count
    asked = {**PROTOCOLS["/v1/responses"], "model": "a"}
    id = server.post("/v1/responses", asked).json()["id"]
    server.post("/models/unload", {"model": "a"})
    assert server.http.get(f"/v1/responses/{id}").json()["id"] == id
    assert loads.count == {"a": 1}


def test_a_closed_model_holds_nothing_of_its_model(serve: Callable[..., Running]) -> None:
    server = serve()
    server.post("/completion", {**SHORT, "model": "a"})
    service = server.models.last("a")
    assert isinstance(service, Service)
    tokenizer, props = weakref.ref(service.tokenizer), server.http.get("/props?model=a").json()
    del service
    assert server.post("/models/unload", {"model": "a"}).status_code == 200
    gc.collect()
    assert tokenizer() is None
    assert server.http.get("/props?model=a").json() == props | {"is_sleeping": True}


@pytest.mark.parametrize("value", ["yes", "2", "", "TRUE"])
def test_autoload_is_a_switch(serve: Callable[..., Running], loads: _Loads, value: str) -> None:
    assert serve().post(f"/completion?autoload={value}", {**SHORT, "model": "a"}).status_code == 400
    assert not loads.count


def test_states_are_told_as_events(serve: Callable[..., Running]) -> None:
    server = serve()
    with server.http.stream("GET", "/models/sse") as response:
        _until(lambda: bool(server.models._listeners))
        server.post("/models/load", {"model": "a"})
        server.post("/models/load", {"model": "broken"})
        server.post("/models/unload", {"model": "a"})
        found = []
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
            if len(found) == 5:
                break
    assert all(event["event"] == "model_status" for event in found)
    assert [(event["model"], event["data"]["status"]) for event in found] == [
        ("a", "loading"), ("a", "loaded"), ("broken", "loading"), ("broken", "unloaded"), ("a", "unloaded"),
    ]  # fmt: skip
    assert found[3]["data"]["exit_code"] == 1


def test_the_folder_is_read_again_when_asked(serve: Callable[..., Running], folder: Path) -> None:
    server = serve()
    server.post("/models/load", {"model": "a"})
    (folder / "a.gguf").unlink()
    (folder / "b.gguf").rename(folder / "new.gguf")
    assert "new" not in _states(server)
    answered = server.http.get("/models?reload=1").json()
    assert {entry["id"] for entry in answered["data"]} == {"broken", "c", "new"}
    assert server.post("/completion", {**SHORT, "model": "new"}).status_code == 200
    assert server.post("/completion", {**SHORT, "model": "a"}).status_code == 404


def test_a_changed_file_is_opened_again_after_a_reload(
    serve: Callable[..., Running], folder: Path, loads: _Loads
) -> None:
    server = serve()
    texts = [server.post("/completion", {**SHORT, "model": name}).json()["content"] for name in "abc"]
    assert texts[0] != texts[2]
    tiny_model.write(folder / "other", seed=2, n_ctx=512)  # as c
    (folder / "other").replace(folder / "a.gguf")
    assert server.post("/completion", {**SHORT, "model": "a"}).json()["content"] == texts[0]
    server.http.get("/models?reload=1")
    assert {name: _states(server)[name]["value"] for name in "abc"} == {
        "a": "unloaded", "b": "loaded", "c": "loaded"
    }  # fmt: skip
    assert server.post("/completion", {**SHORT, "model": "a"}).json()["content"] == texts[2]
    assert loads.count == {"a": 2, "b": 1, "c": 1}


def test_the_end_of_a_server_closes_all_models(serve: Callable[..., Running]) -> None:
    server = serve()
    for name in "ab":
        server.post("/models/load", {"model": name})
    every = list(server.models.shared.services)
    assert len(every) == 2
    server.models.drain()
    assert server.post("/completion", {**SHORT, "model": "a"}).status_code == 503
    assert server.post("/completion", {**SHORT, "model": "c"}).status_code == 503
    assert server.http.get("/health").status_code == 503
    asyncio.run(server.models.close())
    assert all(service.model.executor.closed for service in every)
    assert not server.models.shared.services


def test_a_first_model_answers_requests_that_name_none(
    stories: graphml.Model, folder: Path, loads: _Loads
) -> None:
    options = ServerOptions(parallel=2, n_ctx=64, models_dir=folder)
    sources = _sources(folder, options, loads)
    with running(options, stories, sources=sources) as server:
        assert _model_of(server.post("/completion", SHORT).json()) == STORIES.name
        for name in ("a", "a.gguf"):
            assert _model_of(server.post("/completion", {**SHORT, "model": name}).json()) == name
        assert server.post("/completion", {**SHORT, "model": "gpt-4o"}).status_code == 404
        assert server.post("/models/unload", {"model": STORIES.name}).status_code == 400  # nothing opens it


def test_a_stream_is_ended_while_its_model_is_loaded(serve: Callable[..., Running], loads: _Loads) -> None:
    server, loads.held = serve(), "a"
    body, head = {**SHORT, "model": "a", "stream": True}, {"X-Conversation-Id": "soon"}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.post, "/completion", body, headers=head)
        assert loads.began.wait(20)
        assert server.http.get("/v1/stream?conv_id=soon").status_code == 503
        assert server.http.delete("/v1/stream?conv_id=soon").status_code == 204
        answer = asked.result(20)
        assert answer.status_code == 400
        assert "cancelled" in answer.text
        assert server.http.get("/v1/stream?conv_id=soon").status_code == 404
        loads.go_on.set()
    assert '"stop":true' in server.post("/completion", body, headers=head).text


def test_a_stream_whose_client_leaves_while_its_model_is_loaded_is_read_later(
    serve: Callable[..., Running], loads: _Loads
) -> None:
    server, loads.held = serve(), "a"
    body, head = {**SHORT, "model": "a", "stream": True}, {"X-Conversation-Id": "soon"}
    with (
        httpx2.Client(base_url=server.http.base_url, timeout=0.2) as hasty,
        pytest.raises(httpx2.ReadTimeout),
    ):
        hasty.post("/completion", json=body, headers=head)
    assert loads.began.wait(20)
    assert server.http.get("/v1/stream?conv_id=soon").status_code == 503
    loads.go_on.set()
    _until(lambda: server.http.get("/v1/stream?conv_id=soon").status_code == 200)
    assert '"stop":true' in server.http.get("/v1/stream?conv_id=soon").text


def test_a_stream_that_nobody_reads_keeps_its_model(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, was_busy = threading.Event(), vars(EngineAccess)["busy"].fget
    goes_on.set()
    monkeypatch.setattr(EngineAccess, "busy", property(lambda access: goes_on.is_set() or was_busy(access)))
    server, head = serve(), {"X-Conversation-Id": "kept"}
    body = {**ENDLESS, "model": "a", "stream": True}
    with server.http.stream("POST", "/completion", json=body, headers=head) as response:
        next(response.iter_lines())
    with ThreadPoolExecutor(1) as pool:
        unloading = pool.submit(server.post, "/models/unload", {"model": "a"})
        with pytest.raises(TimeoutError):
            unloading.result(0.5)
        goes_on.clear()
        assert unloading.result(20).status_code == 200
    assert '"tokens_predicted":400' in server.http.get("/v1/stream?conv_id=kept&from=0").text
