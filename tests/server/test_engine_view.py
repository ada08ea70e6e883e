"""The engine view's answers: steps that are recorded while somebody looks, blocks, the trace, no texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

import graphml
from graphml.api.engine import Engine
from graphml.server import engine_view
from graphml.server.engine_view import EngineView
from tests import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with graphml.load(path, backend="reference", n_batch=8, kv="f32") as opened:
        yield opened


@pytest.fixture
def engine(model: graphml.Model) -> Iterator[Engine]:
    with model.engine(max_sequences=2, n_ctx=64) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    view = EngineView(engine, "tiny", "reference", lambda: "<p>graph</p>")
    routes = [Route(f"/engine/{name}", answer) for name, answer in view.handlers().items()]
    with TestClient(Starlette(routes=routes)) as client:  # one event loop for all requests
        yield client
        view.close()


def state(client: TestClient, after: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/engine/state", params={"after": after}).json()
    return found


def test_steps_are_those_since_somebody_looks(client: TestClient, engine: Engine) -> None:
    engine.submit([5, 6], max_tokens=2).result()
    assert state(client)["steps"] == []
    engine.submit(list(range(7, 22)), max_tokens=3).result()
    found = state(client)
    rows = [row for step in found["steps"] for row in step["rows"]]
    assert sum(row["count"] for row in rows if not row["generates"]) == 15
    assert sum(row["generates"] for row in rows) == 2  # the third token is never computed
    last = found["steps"][-1]["number"]
    assert [step["number"] for step in state(client, last)["steps"]] == [last]
    assert state(client, last + 1)["steps"] == []
    assert found["blocks"]["count"] * found["blocks"]["size"] >= 64
    assert found["stats"]["n_steps"] >= len(found["steps"])


def test_the_trace_has_an_event_for_each_step(client: TestClient, engine: Engine) -> None:
    client.get("/engine/state")
    engine.submit([5, 6, 7], max_tokens=4).result()
    events = client.get("/engine/trace").json()["traceEvents"]
    assert sum(event.get("cat") == "step" for event in events) == 4


def test_recording_ends_when_nobody_looks(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_view, "FORGOTTEN_S", 0.05)
    client.get("/engine/state")
    end = time.monotonic() + 10
    while engine._loop.timeline is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert engine._loop.timeline is None
    assert client.get("/engine/state").status_code == 200


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 30])
def test_a_wrong_number_of_a_step_is_named(client: TestClient, after: str) -> None:
    answer = client.get("/engine/state", params={"after": after})
    assert answer.status_code == 400
    assert "after: wanted the number of a step" in answer.json()["error"]["message"]


def test_the_graph_is_made_when_it_is_asked_for(client: TestClient) -> None:
    answer = client.get("/engine/graph")
    assert answer.text == "<p>graph</p>"
    assert "sandbox" in answer.headers["content-security-policy"]
