"""`quantize` and `convert` killed, stopped or without room: what is there, and where the next run begins."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.authoring import handing_on
from graphml.authoring.handing_on import WrittenAs, hand_on
from graphml.errors import UsageError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system import unfinished_work as unfinished
from graphml.system.unfinished_work import KEPT_S, UNFINISHED, put_in_place, unfinished_work
from graphml.weights import gguf_writing, open_model
from graphml.workshop import quantized_file
from graphml.workshop.quantized_file import WantedTypes, changes, split_plan, write_quantized
from tests import tiny_model
from tests.folder_records import about, write_folder

OPTIONS = LoadOptions(backend="reference", kv="f32")
KILLED_AT = 5
"""The tensors that are written when the process is killed."""
PROLOGUE = f"""
import os, signal
from pathlib import Path
from graphml.weights import gguf_writing
gguf_writing.NOTED_S = 0.0
calls = []
def report(what, done, total):
    if what == "quantize":
        calls.append(done)
        if len(calls) > {KILLED_AT}:
            os.kill(os.getpid(), signal.SIGKILL)
"""
QUANTISED = (
    PROLOGUE
    + """
from graphml.weights import open_model
from graphml.workshop.quantized_file import WantedTypes, changes, split_plan, write_quantized
with open_model(Path({source!r})) as file:
    plan = changes(file, WantedTypes("Q4_0"), None)
    write_quantized(file, plan, "Q4_0", Path({output!r}), progress=report, parts=split_plan(plan, {most}))
"""
)
CONVERTED = (
    PROLOGUE
    + """
import graphml
from graphml.authoring.handing_on import WrittenAs, hand_on
from graphml.runtime.programs.load_options import LoadOptions
with graphml.load({source!r}, "reference", kv="f32") as model:
    options = LoadOptions(backend="reference", kv="f32")
    hand_on(model, Path({output!r}), None, options, WrittenAs("q8_0", {most}, report))
"""
)
Run = Callable[[Path, Path, int | None], list[Path]]


def quantised(source: Path, output: Path, most: int | None) -> list[Path]:
    with open_model(source) as file:
        plan = changes(file, WantedTypes("Q4_0"), None)
        return write_quantized(file, plan, "Q4_0", output, parts=split_plan(plan, most))


def converted(source: Path, output: Path, most: int | None) -> list[Path]:
    with graphml.load(source, "reference", kv="f32") as model:
        return list(hand_on(model, output, None, OPTIONS, WrittenAs("q8_0", most)).paths)


def gguf_source(folder: Path) -> Path:
    return tiny_model.write(folder / "tiny.gguf")


def folder_source(folder: Path) -> Path:
    return write_folder(folder / "tiny", *about("gpt2")[:2])


KINDS: dict[str, tuple[str, Run, Callable[[Path], Path]]] = {
    "quantize": (QUANTISED, quantised, gguf_source),
    "convert": (CONVERTED, converted, folder_source),
}


def killed(script: str, source: Path, output: Path, most: int | None) -> None:
    code = script.format(source=str(source), output=str(output), most=most)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == -9, process.stderr


def begun(folder: Path) -> list[Path]:
    return sorted(folder.glob(UNFINISHED.format("*")))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tensors whose data are made from now on."""
    names: list[str] = []
    data = quantized_file._data

    def noted(file: Any, change: Any, *rest: Any) -> Any:
        names.append(change.tensor.name)
        return data(file, change, *rest)

    monkeypatch.setattr(quantized_file, "_data", noted)
    return names


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_is_gone_on_with(kind: str, in_parts: bool, tmp_path: Path, encoded: list[str]) -> None:
    script, run, made = KINDS[kind]
    most = {"quantize": 12_000, "convert": 40_000}[kind] if in_parts else None
    source = made(tmp_path)
    wanted = run(source, tmp_path / "at_once.gguf", most)
    n_tensors = len(encoded)
    encoded.clear()
    before = {path.name for path in tmp_path.iterdir()}
    killed(script, source, tmp_path / "out.gguf", most)
    (folder,) = begun(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before | {folder.name}  # nothing that looks whole
    came = run(source, tmp_path / "out.gguf", most)
    assert len(encoded) == n_tensors - KILLED_AT
    assert len(came) == len(wanted) > (1 if most else 0)
    for path, other in zip(came, wanted, strict=True):
        assert path.read_bytes() == other.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == before | {path.name for path in came}


def test_another_source_is_another_work(tmp_path: Path, encoded: list[str]) -> None:
    source = gguf_source(tmp_path)
    killed(QUANTISED, source, tmp_path / "out.gguf", None)
    os.utime(source, (1.0, 1.0))
    (path,) = quantised(source, tmp_path / "out.gguf", None)
    with open_model(path) as file:
        assert len(encoded) == len(file.tensors)
    (folder,) = begun(tmp_path)  # of the source as it was
    old = time.time() - KEPT_S - 1
    for each in (*folder.iterdir(), folder):
        os.utime(each, (old, old))
    quantised(source, tmp_path / "out.gguf", None)
    assert not begun(tmp_path)


@pytest.mark.parametrize("damage", ["shorter", "another head", "no note", "a note of nonsense"])
def test_what_is_not_as_noted_is_written_anew(damage: str, tmp_path: Path, encoded: list[str]) -> None:
    source = gguf_source(tmp_path)
    (wanted,) = quantised(source, tmp_path / "at_once.gguf", None)
    n_tensors = len(encoded)
    killed(QUANTISED, source, tmp_path / "out.gguf", None)
    (folder,) = begun(tmp_path)
    partial, note = folder / "out.gguf", folder / "out.gguf.done"
    count, n_bytes = map(int, note.read_text().split())
    assert count == KILLED_AT
    if damage == "shorter":
        os.truncate(partial, n_bytes - 1)
    elif damage == "another head":
        partial.write_bytes(b"GGUX" + partial.read_bytes()[4:])
    elif damage == "no note":
        note.unlink()
    else:
        note.write_text(f"{count} {n_bytes - 32}\n")
    encoded.clear()
    (came,) = quantised(source, tmp_path / "out.gguf", None)
    assert came.read_bytes() == wanted.read_bytes()
    assert len(encoded) == n_tensors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_full_disk_and_ctrl_c_leave_what_was_there(
    kind: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run, made = KINDS[kind]
    source, output = made(tmp_path), tmp_path / "out.gguf"
    output.write_text("of before")

    def fails(self: object, pieces: object) -> None:
        raise error

    monkeypatch.setattr(gguf_writing.GgufFile, "add", fails)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UsageError) as raised:
        run(source, output, None)
    if isinstance(error, OSError):
        assert "out.gguf: cannot be written: No space left on device" in str(raised.value)
    assert output.read_text() == "of before"
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "out.gguf"}


def test_a_comparison_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = folder_source(tmp_path), tmp_path / "out.gguf"
    output.write_text("of before")
    monkeypatch.setattr(handing_on, "_furthest", lambda *of: -1.0)
    with pytest.raises(graphml.GraphmlError, match="logits are not the model's"):
        converted(source, output, None)
    assert output.read_text() == "of before"
    assert not begun(tmp_path)


def test_two_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    with unfinished_work(target, "a") as first, unfinished_work(target, "a") as second:
        assert first != second
        (second / "x").write_text("x")
    with unfinished_work(target, "a") as again, unfinished_work(target, "b") as other:
        assert again == first != other
    assert not list(tmp_path.iterdir())


def test_a_target_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is not a plain file"), unfinished_work(tmp_path, "a"):
        pass


def test_parts_of_two_sets_are_never_there_with_a_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two names leaves a model without its first part, which nothing opens."""
    (tmp_path / "new").mkdir()
    news, olds = (
        [folder / f"{number}.gguf" for number in range(3)] for folder in (tmp_path / "new", tmp_path)
    )
    for path in news:
        path.write_text("new")
    for path in olds:
        path.write_text("old")
    olds[1].chmod(0o640)
    seen: list[list[str]] = []
    replace = Path.replace

    def noted(self: Path, target: Path) -> Path:
        seen.append([path.read_text() if path.exists() else "" for path in olds])
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    put_in_place(news, olds)
    assert seen == [["", "old", "old"], ["", "old", "new"], ["", "new", "new"]]
    assert [path.read_text() for path in olds] == ["new"] * 3
    assert olds[1].stat().st_mode & 0o777 == 0o640


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.gguf"
    with unfinished_work(target, "a") as first:
        pass
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first.symlink_to(elsewhere)
    with unfinished_work(target, "a") as folder:
        assert folder != first
    assert not list(elsewhere.iterdir())
    first.unlink()
    monkeypatch.setattr(unfinished.os, "getuid", lambda: os.geteuid() + 1, raising=False)
    with unfinished_work(target, "a") as folder:
        assert folder != first
    shutil.rmtree(first)


def test_a_file_system_without_locks_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_none(self: object, **of: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(unfinished.FileLock, "acquire", has_none)
    with unfinished_work(tmp_path / "out.gguf", "a") as folder:
        (folder / "x").write_text("x")
        assert not begun(tmp_path)
    assert not list(tmp_path.iterdir())
