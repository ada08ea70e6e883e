"""Slots in files: saved, restored by another server, erased; and what must not be saved or read."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

import graphml
from graphml.server.options.api_keys import keys_in
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running
from tests.stories import STORIES

PROMPT = "Once upon a time there was a little girl who lived in a house. " * 4
ASKED: dict[str, Any] = {"prompt": PROMPT, "n_predict": 4, "temperature": 0, "id_slot": 1}


def change(server: Running, slot: int, action: str, name: str = "a.bin", **more: Any) -> httpx2.Response:
    return server.post(f"/slots/{slot}?action={action}", {"filename": name}, **more)


def options(folder: Path, **more: Any) -> ServerOptions:
    return ServerOptions(parallel=2, n_ctx=256, slot_save_path=folder, **more)


def test_a_saved_slot_is_found_again_by_another_server(stories: graphml.Model, tmp_path: Path) -> None:
    with running(options(tmp_path), stories) as server:
        first = server.post("/completion", ASKED).json()
        saved = change(server, 1, "save").json()
        n_saved = first["tokens_evaluated"] + 3  # all but the last, which nobody has computed
        n_prompt = first["tokens_evaluated"] - 1
        assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "a.bin", n_saved)
        assert saved["n_written"] == (tmp_path / "a.bin").stat().st_size
        assert saved["timings"]["save_ms"] > 0
        assert change(server, 0, "save", "b.bin").json()["n_saved"] == 0  # nothing ran there
        assert server.at_rest()
    with (
        graphml.load(STORIES, "cpu", threads=1, n_batch=64) as other,
        running(options(tmp_path), other) as server,
    ):
        restored = change(server, 0, "restore").json()
        assert (restored["id_slot"], restored["n_restored"]) == (0, n_saved)
        assert restored["n_read"] == saved["n_written"]
        assert restored["timings"]["restore_ms"] > 0
        again = server.post("/completion", ASKED).json()
        assert again["content"] == first["content"]
        assert (first["timings"]["cache_n"], again["timings"]["cache_n"]) == (0, n_prompt)
        assert again["timings"]["prompt_n"] == 1
        assert change(server, 0, "save", "c.bin").json()["n_saved"] == n_saved
        assert change(server, 0, "erase").json() == {"id_slot": 0, "n_erased": n_saved}
        assert server.post("/completion", ASKED).json()["timings"]["cache_n"] == 0
        assert change(server, 0, "restore").json()["n_restored"] == n_saved  # beside what is there
        assert server.at_rest()


def test_a_slot_is_restored_while_another_request_runs(stories: graphml.Model, tmp_path: Path) -> None:
    with running(options(tmp_path), stories) as server:
        server.post("/completion", ASKED)
        change(server, 1, "save")
        alone = {"prompt": "The dog", "n_predict": 100, "temperature": 0, "ignore_eos": True}
        wanted = server.post("/completion", alone).json()["content"]
        with server.http.stream("POST", "/completion", json={**alone, "stream": True}) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            for _ in range(5):
                change(server, 1, "erase")
                assert change(server, 1, "restore").json()["n_restored"] > 0
            events = [first, *(line for line in lines if line.startswith("data: "))]
        assert "".join(json.loads(line[6:])["content"] for line in events) == wanted
        assert server.at_rest()


@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/passwd", "", ".hidden", "a/b", "a\x00", "x" * 200, "..", "a\n"],
    ids=["up", "absolute", "empty", "hidden", "folder", "null", "long", "dots", "line"],
)
def test_names_do_not_leave_the_folder(stories: graphml.Model, tmp_path: Path, name: str) -> None:
    with running(options(tmp_path / "slots"), stories) as server:
        for action in ("save", "restore"):
            refused = change(server, 0, action, name)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "filename")


def test_what_cannot_be_is_refused(stories: graphml.Model, server: Running, tmp_path: Path) -> None:
    assert change(server, 0, "save").status_code == 501  # without --slot-save-path
    with running(options(tmp_path, api_keys=("one", "two")), stories) as found:
        one, two = {"X-Api-Key": "one"}, {"X-Api-Key": "two"}
        found.post("/completion", ASKED, headers=one)
        assert change(found, 1, "save", "two.bin", headers=two).json()["n_saved"] > 0  # an admin may
        assert change(found, 1, "save", headers=one).json()["n_saved"] > 0
        refused = change(found, 1, "restore", headers=two).json()["error"]["message"]
        assert refused == "a.bin: was saved with another key, or with other adapters"  # no hash of a key
        assert change(found, 1, "restore", headers=one).status_code == 200
        (tmp_path / "text").write_text("mine")
        whole = (tmp_path / "a.bin").read_bytes()
        (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
        for action, name in (("save", "text"), ("restore", "text"), ("restore", "half"), ("restore", "none")):
            refused = change(found, 1, action, name, headers=one)
            assert refused.status_code == 400
            assert str(tmp_path) not in refused.text
        assert (tmp_path / "text").read_text() == "mine"
        for path in ("/slots/2?action=save", "/slots/0?action=drop"):
            assert found.post(path, {"filename": "a"}, headers=one).status_code == 400


def test_an_admin_saves_for_the_key_whose_slot_it_is(stories: graphml.Model, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("user\nroot admin=1\n")
    (tmp_path / "slots").mkdir()
    with running(options(tmp_path / "slots", file_keys=keys_in(tmp_path / "keys")), stories) as server:
        user, root = {"X-Api-Key": "user"}, {"X-Api-Key": "root"}
        server.post("/completion", ASKED, headers=user)
        saved = change(server, 1, "save", headers=root)
        assert saved.status_code == 200, saved.text
        n_saved = saved.json()["n_saved"]
        assert n_saved > 0
        assert change(server, 1, "restore", headers=root).status_code == 400
        assert change(server, 1, "restore", headers=user).json()["n_restored"] == n_saved


def test_a_full_disk_leaves_the_file_that_was_there(
    stories: graphml.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with running(options(tmp_path), stories) as server:
        server.post("/completion", ASKED)
        assert change(server, 1, "save").status_code == 200
        before = (tmp_path / "a.bin").read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr("graphml.system.replaced_file.os.fsync", full)
            refused = change(server, 1, "save")
        assert refused.status_code == 400
        assert "No space left" in refused.text
        assert str(tmp_path) not in refused.text
        assert [one.name for one in tmp_path.iterdir()] == ["a.bin"]
        assert (tmp_path / "a.bin").read_bytes() == before
        assert server.post("/completion", ASKED).status_code == 200
        assert change(server, 1, "save").status_code == 200
