"""Another model in place of the first: no request is lost, and each keeps its model to its end."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphml
from graphml.server.engine.served_models import ServedModels
from graphml.server.options.api_keys import keys_in
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running
from tests.stories import STORIES

ENDLESS = {"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": True, "temperature": 0}


def _load(path: Path) -> graphml.Model:
    return graphml.load(path, "cpu", threads=1, n_batch=64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for one in STORIES.parent.iterdir():
        shutil.copy(one, tmp_path / one.name.replace(STORIES.name, "other.bin"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    (tmp_path / "inner").mkdir()
    return tmp_path


@pytest.fixture
def swapping(folder: Path) -> Iterator[Running]:
    options = ServerOptions(parallel=2, n_ctx=512, metrics=True, models_dir=folder)
    with running(options, _load(STORIES), _load) as found:
        yield found


def _names(server: Running) -> str:
    name: str = server.http.get("/v1/models").json()["data"][0]["id"]
    return name


def test_requests_that_have_begun_end_with_their_model(swapping: Running) -> None:
    first, alone = swapping.service, swapping.post("/completion", ENDLESS).json()["content"]
    found: list[str] = []
    with swapping.http.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as response:
        lines = response.iter_lines()
        found.append(next(lines))
        assert swapping.post("/models/load", {"model": "other.bin"}).json() == {"success": True}
        assert swapping.service is not first
        assert _names(swapping) == "other.bin"
        found += list(lines)
    assert found[-2:] == ["data: [DONE]", ""]
    assert STORIES.name in found[0]
    assert "other.bin" not in "".join(found)
    assert swapping.post("/completion", ENDLESS).json()["content"] == alone  # equal weights, another name
    for _ in range(400):
        if not swapping.models.busy():
            break
        threading.Event().wait(0.02)
    assert not swapping.models.busy()
    assert swapping.at_rest()
    text = swapping.http.get("/metrics").text
    assert "llamacpp:n_tokens_max" in text  # counts go on


def test_requests_go_on_while_models_are_swapped(swapping: Running) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        for _ in range(8):
            answer = swapping.post("/completion", {**ENDLESS, "n_predict": 5 + number})
            if answer.status_code != 200 or answer.json()["tokens_predicted"] != 5 + number:
                wrong.append(answer.text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for _ in range(3):
        assert swapping.post("/models/load", {"model": "other.bin"}).status_code == 200
    for one in threads:
        one.join()
    assert not wrong


@pytest.mark.parametrize("name", ["none.gguf", "../stories.bin", "inner", "", ".", "broken.gguf"])
def test_what_cannot_be_served_changes_nothing(swapping: Running, folder: Path, name: str) -> None:
    before = swapping.service
    refused = swapping.post("/models/load", {"model": name})
    assert refused.status_code == 400
    assert str(folder) not in refused.text
    assert swapping.service is before
    assert swapping.post("/completion", {**ENDLESS, "n_predict": 1}).status_code == 200


def test_loading_is_off_by_default_and_needs_an_admin(
    server: Running, stories: graphml.Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.post("/models/load", {"model": "other.bin"}).status_code == 501
    path = folder / "keys"
    path.write_text("user\nroot admin=1\n")
    options = ServerOptions(
        parallel=1, n_ctx=64, models_dir=folder, api_keys=("own",), file_keys=keys_in(path)
    )
    loaded: list[str] = []

    async def swap(_: ServedModels, name: str) -> None:
        loaded.append(name)

    monkeypatch.setattr(ServedModels, "swap", swap)
    with running(options, stories, _load) as found:
        for key, status in (("user", 403), ("root", 200), ("own", 200)):
            answer = found.post("/models/load", {"model": "other.bin"}, headers={"X-Api-Key": key})
            assert answer.status_code == status, key
    assert loaded == ["other.bin"] * 2


def test_the_files_that_may_be_loaded_are_listed(swapping: Running, folder: Path) -> None:
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "notes.txt"):
        (folder / name).touch()
    listed = swapping.http.get("/models/load").json()
    assert listed == {
        "models": ["big-00001-of-00002.gguf", "broken.gguf"], "current": STORIES.name
    }  # fmt: skip
    assert swapping.post("/models/load", {"model": "other.bin"}).status_code == 200
    assert swapping.http.get("/models/load").json()["current"] == "other.bin"


def test_a_server_that_loads_no_models_lists_none(server: Running) -> None:
    assert server.http.get("/models/load").json() == {"models": [], "current": STORIES.name}
