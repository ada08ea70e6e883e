"""What killed processes leave beside files, and who removes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphml.system import replaced_file
from graphml.system.replaced_file import PARTIAL, STALE_S, replacing
from graphml.weights.tensor_file import write_tensors


def left(folder: Path, name: str, age: float, within: float | None = None) -> Path:
    """What a killed process has left; within: the age of a file in it, where it is a folder."""
    path = folder / PARTIAL.format(name)
    if within is None:
        path.write_bytes(b"x")
    else:
        path.mkdir()
        (path / "a").write_bytes(b"x")
        os.utime(path / "a", (time.time() - within,) * 2)
    os.utime(path, (time.time() - age,) * 2)
    return path


def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_next_process_that_writes_removes_what_is_old_and_nobodys(tmp_path: Path) -> None:
    gone, long_ago = dead(), 2 * STALE_S
    old = left(tmp_path, f"{gone}-a", long_ago)
    old_folder = left(tmp_path, f"{gone}-b", long_ago, within=long_ago)
    kept = [
        left(tmp_path, f"{gone}-c", 1.0),  # of a process of another machine, perhaps
        left(tmp_path, f"{os.getpid()}-d", long_ago),
        left(tmp_path, f"{gone}-e", long_ago, within=1.0),
    ]
    write_tensors(tmp_path / "a.session", {}, {})
    assert not old.exists()
    assert not old_folder.exists()
    assert all(path.exists() for path in kept)


def test_a_killed_writer_leaves_a_file_that_has_its_number(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from graphml.system.replaced_file import replacing\n"
        f"with replacing(pathlib.Path({str(tmp_path / 'a')!r})):\n    os.kill(os.getpid(), 9)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    assert process.wait() == -9
    (partial,) = tmp_path.iterdir()
    assert partial.match(PARTIAL.format(f"{process.pid}-*"))
    os.utime(partial, (0, 0))
    with replacing(tmp_path / "a") as path:
        path.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_is_looked_at_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(replaced_file, "remove_stale", looked.extend)
    for _ in range(2):
        with replacing(tmp_path / "a", durable=False) as path:
            path.write_text("x")
    assert looked == [tmp_path]
