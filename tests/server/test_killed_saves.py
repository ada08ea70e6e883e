"""kill -9 while slots are saved over HTTP: a file is the old one, or the new one, or there is none."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

import graphml
from graphml.server.options.server_options import ServerOptions
from graphml.system.replaced_file import PARTIAL, STALE_S
from tests.server.running_server import Running, running
from tests.stories import STORIES

N_CTX, ROUNDS = 512, 3
TEXTS = ("Once upon a time there was a little girl. " * 20, "The dog ran to a big red house. " * 12)
LONGEST_S = 0.05
"""Within this time after the first save the server is killed; a save takes less than half of it."""
DIES_WITHIN = """
import os, signal
import safetensors.numpy as safetensors

whole, calls = safetensors.save_file, []


def half(arrays, path, about):
    whole(arrays, path, about)
    calls.append(path)
    if len(calls) == 3:
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


safetensors.save_file = half
"""
"""Of a process that is killed when half of its third save is written."""


@contextmanager
def a_process(folder: Path, before: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    flags = f"-m {STORIES} --port 0 -c {N_CTX} -np 2 -kvu -t 1 --slot-save-path {folder}".split()
    begin = f"{before}\nfrom graphml.cli.main import main\nmain()"
    command = [sys.executable, "-c", begin, "serve", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"at (http://127.0.0.1:\d+)", process.stderr.readline())
        assert found is not None
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def asked(number: int) -> dict[str, Any]:
    return {"prompt": TEXTS[number], "n_predict": 1, "temperature": 0, "id_slot": number}


def killed_while_saving(folder: Path, after: float, before: str = "") -> int:
    """Save two slots in turns to one name until a kill; how many were answered. before: code run first."""
    done = 0
    with a_process(folder, before) as (process, address), httpx2.Client(base_url=address, timeout=60) as http:
        for number in range(2):
            assert http.post("/completion", json=asked(number)).status_code == 200
        begun = threading.Event()

        def kill() -> None:
            begun.wait()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(after)
            process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with contextlib.suppress(httpx2.HTTPError):
            while True:
                begun.set()
                saved = http.post(f"/slots/{done % 2}?action=save", json={"filename": "a.bin"})
                assert saved.status_code == 200
                done += 1
        killer.join()
    return done


def check_whole(server: Running, cold: list[dict[str, Any]]) -> None:
    """What is restored is one of the two slots, to the last token."""
    restored = server.post("/slots/0?action=restore", {"filename": "a.bin"})
    assert restored.status_code == 200, restored.text
    counts = [one["tokens_evaluated"] + one["tokens_predicted"] - 1 for one in cold]
    number = counts.index(restored.json()["n_restored"])
    again = server.post("/completion", asked(number)).json()
    n_found = cold[number]["tokens_evaluated"] - 1  # the last id of a prompt is always computed
    assert (again["content"], again["timings"]["cache_n"]) == (cold[number]["content"], n_found)
    assert server.post("/slots/0?action=erase", {}).json()["n_erased"] == counts[number]


def test_a_killed_save_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    rng = random.Random(5)
    options = ServerOptions(parallel=2, n_ctx=N_CTX, slot_save_path=tmp_path)
    with graphml.load(STORIES, "cpu", threads=1) as model, running(options, model) as server:
        cold = [server.post("/completion", {**asked(i), "cache_prompt": False}).json() for i in range(2)]
        assert killed_while_saving(tmp_path, 60, DIES_WITHIN) == 2
        check_whole(server, cold)
        for _ in range(ROUNDS):
            (tmp_path / "a.bin").unlink(missing_ok=True)
            done = killed_while_saving(tmp_path, rng.uniform(0, LONGEST_S))
            there = (tmp_path / "a.bin").exists()
            assert there or not done  # what was answered is there
            if there:
                check_whole(server, cold)
            left = [one for one in tmp_path.iterdir() if one.name != "a.bin"]
            assert all(one.match(PARTIAL.format("*")) for one in left)


def test_what_a_killed_save_has_left_is_removed_by_a_later_server(
    stories: graphml.Model, tmp_path: Path
) -> None:
    old, new = (tmp_path / PARTIAL.format(name) for name in ("old", "new"))
    old.write_bytes(b"x")
    new.write_bytes(b"x")  # another server's, perhaps
    long_ago = time.time() - 2 * STALE_S
    folder = tmp_path / PARTIAL.format("folder")
    folder.mkdir()
    (folder / ".tmpXYZ").write_bytes(b"x")  # the library's own
    for one in (old, folder / ".tmpXYZ", folder):
        os.utime(one, (long_ago, long_ago))
    with running(ServerOptions(parallel=1, n_ctx=64, slot_save_path=tmp_path), stories):
        assert [one.name for one in tmp_path.iterdir()] == [new.name]
