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


def test_the_next_process_that_writes_removes_what_has_not_changed_for_an_hour(tmp_path: Path) -> None:
    """The numbers of processes say nothing: in a container there always is a process 1."""
    long_ago = 2 * STALE_S
    old = [left(tmp_path, f"{os.getpid()}-a", long_ago), left(tmp_path, "1-b", long_ago, within=long_ago)]
    kept = [left(tmp_path, "1-c", 1.0), left(tmp_path, "1-d", long_ago, within=1.0)]
    write_tensors(tmp_path / "a.session", {}, {})
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in kept)


def test_a_killed_writer_leaves_a_file_that_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from graphml.system.replaced_file import replacing\n"
        f"with replacing(pathlib.Path({str(tmp_path / 'a')!r})):\n    os.kill(os.getpid(), 9)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    assert process.wait() == -9
    (partial,) = tmp_path.iterdir()
    assert partial.match(PARTIAL.format("*"))
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


def test_a_folder_is_as_young_as_the_youngest_file_below_it(tmp_path: Path) -> None:
    folder = left(tmp_path, "1-a", 2 * STALE_S, within=2 * STALE_S)
    (folder / "new").mkdir()
    (folder / "new" / "weights").write_bytes(b"x")
    for path in (folder / "new", folder):
        os.utime(path, (0, 0))
    replaced_file.remove_stale([tmp_path])
    assert (folder / "new" / "weights").exists()
    os.utime(folder / "new" / "weights", (0, 0))
    with replaced_file.folder_beside(tmp_path / "b"):
        assert not folder.exists()
