"""An idle model is closed, says so, and answers the next request as before."""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.server.engine.service import ClosedModel, Service
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running
from tests.stories import STORIES

STORY = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}
WITHOUT_MODEL = (
    "/health",
    "/v1/health",
    "/props",
    "/models",
    "/v1/models",
    "/v1/models/stories",
    "/metrics",
    "/api/ps",
)


def _load(path: Path) -> graphml.Model:
    return graphml.load(path, "cpu", threads=1, n_batch=64)


@pytest.fixture
def sleepy(tmp_path: Path) -> Iterator[Running]:
    for file in STORIES.parent.iterdir():
        shutil.copy(file, tmp_path)
    options = ServerOptions(parallel=2, n_ctx=512, metrics=True, aliases=("stories",), sleep_idle=0)
    with running(options, _load(tmp_path / STORIES.name), _load) as server:
        yield server


def _until(reached: Any) -> None:
    for _ in range(1000):
        if reached():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not reached")


def _asleep(server: Running) -> bool:
    sleeps: bool = server.http.get("/props").json()["is_sleeping"] and not server.models.busy()
    return sleeps


def test_a_model_that_sleeps_is_closed_and_answers_as_before(sleepy: Running) -> None:
    first, engine = sleepy.service, sleepy.service.access.engine
    assert engine is not None
    before = sleepy.post("/completion", STORY).json()
    assert engine._runner() is not None  # it has the blocks
    _until(lambda: _asleep(sleepy))
    assert engine._runner() is None
    assert first.model.executor.closed
    assert isinstance(sleepy.models.known(None), ClosedModel)
    again = sleepy.post("/completion", STORY).json()
    assert (again["tokens"], again["content"]) == (before["tokens"], before["content"])
    assert again["timings"]["cache_n"] == 0  # no block outlives the engine
    assert sleepy.service is not first
    closed = weakref.ref(first)
    del first, engine
    _until(lambda: _asleep(sleepy))  # which collects
    assert closed() is None


def test_a_server_that_sleeps_says_so_and_stays_asleep(sleepy: Running) -> None:
    props, listing = sleepy.http.get("/props").json(), sleepy.http.get("/v1/models").json()
    assert (props["is_sleeping"], props["deterministic"]) == (False, False)
    assert "graphml:model_sleeping 0" in sleepy.http.get("/metrics").text
    sleepy.post("/completion", STORY)
    _until(lambda: _asleep(sleepy))
    slept = sleepy.models.known(None)
    assert sleepy.http.get("/api/ps").json() == {"models": []}
    for path in WITHOUT_MODEL:
        assert sleepy.http.get(path).status_code == 200, path
    assert sleepy.http.get("/props").json() == props | {"is_sleeping": True}
    assert sleepy.http.get("/v1/models").json() == listing
    assert sleepy.http.get("/health").json() == {"status": "ok", "is_sleeping": True}
    metrics = sleepy.http.get("/metrics").text
    assert "graphml:model_sleeping 1" in metrics
    assert "llamacpp:tokens_predicted_total 12" in metrics
    assert sleepy.models.known(None) is slept
    assert isinstance(slept, ClosedModel)


def test_requests_that_come_while_it_falls_asleep_are_answered(
    sleepy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = sleepy.post("/completion", STORY).json()["content"]
    _until(lambda: _asleep(sleepy))
    closing, go_on, close = threading.Event(), threading.Event(), Service.close

    def held(service: Service) -> None:
        closing.set()
        assert go_on.wait(20)
        close(service)

    with monkeypatch.context() as patches:
        patches.setattr(Service, "close", held)
        assert sleepy.post("/completion", STORY).json()["content"] == alone
        assert closing.wait(20)
        opened: list[str] = []
        opener = sleepy.models._opened
        patches.setattr(sleepy.models.room, "_opened", lambda name: opened.append(name) or opener(name))
        asked: list[bool] = []
        acquired = sleepy.models.room._acquired

        def counted(entry: Any, autoload: bool) -> Any:
            asked.append(True)
            return acquired(entry, autoload)

        patches.setattr(sleepy.models.room, "_acquired", counted)
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(sleepy.post("/completion", STORY).json()["content"]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        _until(lambda: len(asked) == len(threads))
        assert not opened  # it is not open twice
        go_on.set()
        for thread in threads:
            thread.join()
    assert texts == [alone] * 4
    assert opened


def test_a_running_answer_keeps_its_model_awake(sleepy: Running) -> None:
    first = sleepy.service
    endless = {**STORY, "n_predict": 300, "ignore_eos": True, "stream": True}
    with sleepy.http.stream("POST", "/completion", json=endless) as response:
        n_events = sum(line.startswith("data: ") for line in response.iter_lines())
        assert sleepy.service is first
    assert n_events > 300


def test_a_file_that_is_gone_is_said_and_may_come_back(sleepy: Running, tmp_path: Path) -> None:
    sleepy.post("/completion", STORY)
    _until(lambda: _asleep(sleepy))
    moved = (tmp_path / STORIES.name).rename(tmp_path / "moved")
    refused = sleepy.post("/completion", STORY)
    assert refused.status_code == 503
    assert str(tmp_path) not in refused.text
    assert STORIES.name in refused.text
    moved.rename(tmp_path / STORIES.name)
    assert sleepy.post("/completion", STORY).status_code == 200


def test_a_server_that_ends_does_not_wake(sleepy: Running) -> None:
    sleepy.post("/completion", STORY)
    _until(lambda: _asleep(sleepy))
    slept = sleepy.models.known(None)
    sleepy.models.drain()
    assert sleepy.post("/completion", STORY).status_code == 503
    assert sleepy.models.known(None) is slept
    assert isinstance(slept, ClosedModel)


def test_stored_responses_outlive_sleep(sleepy: Running) -> None:
    asked = {"input": "Once", "max_output_tokens": 4, "temperature": 0}
    id = sleepy.post("/v1/responses", asked).json()["id"]
    _until(lambda: _asleep(sleepy))
    assert sleepy.http.get(f"/v1/responses/{id}").json()["id"] == id


def test_a_model_never_sleeps_by_default(server: Running) -> None:
    server.post("/completion", STORY)
    assert not server.models._timers
