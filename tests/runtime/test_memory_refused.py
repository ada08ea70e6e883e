"""Memory that the system refuses: an error of graphml names for what, how many bytes, and what to change."""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphml_cpu.runtime.workers import Team
from graphml_gpu.buffers import Buffers
from graphml_gpu.plain_driver import small
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import BackendError, WeightsError
from graphml.loading import discovery
from graphml.runtime.sessions import evaluation
from graphml.system import pages
from tests import tiny_model

REFUSED = r"the system refuses [\d,]+ bytes \(Cannot allocate memory\)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "tiny.gguf")


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Call it with False, and no pages are given to the process; True: not even those of files."""
    real = mmap.mmap

    def refusing(files: bool) -> None:
        def made(file: int, *args: Any, **options: Any) -> mmap.mmap:
            if file == -1 or files:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return real(file, *args, **options)

        monkeypatch.setattr(mmap, "mmap", made)

    yield refusing
    monkeypatch.undo()


def test_caches(path: Path, refuse: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with graphml.load(path, threads=1) as model:
        session, batch = model.session(32), model.batch(3, 64)  # whose group has no room for other sizes
        before = session.eval([5, 6, 7])
        refuse(False)
        bytes_of_all = 2 * 2 * 64 * 16 * 2  # layers, keys and values, cells, width, f16
        words = rf"^n_ctx = 64: .* of {bytes_of_all:,} bytes.*{REFUSED}; give a smaller n_ctx, or .*\(kv\)$"
        with pytest.raises(BackendError, match=words):
            model.session(64)
        words = f"in 3 sequences: .* of {3 * bytes_of_all:,} .* fewer sequences"
        with pytest.raises(BackendError, match=words):
            model.batch(3, 64)
        monkeypatch.undo()
        session.rewind(0)
        np.testing.assert_array_equal(session.eval([5, 6, 7]), before)
        assert len(batch.eval([[1], [2], [3]])) == 3


def test_programs(path: Path, refuse: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with graphml.load(path, threads=1) as model:
        session = model.session(64)
        refuse(False)
        words = rf"a program for steps of 1 token: .*{REFUSED}; .*n_batch \(it is 512\)"
        with pytest.raises(BackendError, match=words):
            session.eval([1])
        monkeypatch.undo()
        session.eval([1])


def test_weights(path: Path, refuse: Callable[[bool], None]) -> None:
    refuse(False)
    total = path.stat().st_size
    with pytest.raises(
        BackendError, match=rf"tiny.gguf: a copy of [\d,]+ bytes.*{REFUSED}; .*pages='map'"
    ) as error:
        graphml.load(path, pages="copy")
    assert 0 < int(str(error.value).split("copy of ")[1].split(" ")[0].replace(",", "")) < total
    with pytest.raises(
        BackendError, match=rf"_embd.weight as q8_0, [\d,]+ bytes with all.*{REFUSED}; .*quant"
    ):
        graphml.load(path, quant="q8")


def test_maps_of_files(path: Path, refuse: Callable[[bool], None]) -> None:
    refuse(True)
    with pytest.raises(WeightsError, match=rf"tiny.gguf: {path.stat().st_size:,} bytes cannot be mapped"):
        graphml.load(path)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_steps_and_states_in_numpy(backend: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with graphml.load(path, backend, threads=1) as model:
        session = model.session(64)
        program = model.executor.programs.compiled_for(1, 1).program

        def full(*_: Any) -> Any:
            raise MemoryError("Unable to allocate 3.38 MiB")

        with monkeypatch.context() as patch:
            patch.setattr(program, "run", full)
            patch.setattr(program, "begin", full, raising=False)
            with pytest.raises(BackendError, match=r"a step of 1 token: .*3.38 MiB; give a smaller n_batch"):
                session.eval([4])
        assert session.n_past == 0
        assert np.isfinite(session.eval([4])).all()


def test_logits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 338. MiB")

    with graphml.load(path, "reference") as model:
        session = model.session(64)
        monkeypatch.setattr(evaluation, "np", SimpleNamespace(empty=full, float32=np.float32))
        with pytest.raises(BackendError, match=r"logits of 3 tokens: .*338. MiB; give fewer tokens"):
            session.eval([1, 2, 3], all_logits=True)


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        real(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(BackendError, match=r"threads: wanted 6, and the system gives 3 \(can't start"):
        Team(6)
    assert not any(thread.is_alive() for thread in started)


def test_buffers_of_devices() -> None:
    def full(size: int, what: str) -> Any:
        raise MemoryError("std::bad_alloc")

    with pytest.raises(BackendError, match=r"state k: 64 bytes cannot be allocated.*std::bad_alloc"):
        Buffers().allocate(small().facts, 64, "state k", full, lambda made: None)


def test_large_pages_are_only_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pages(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Pages)
    assert not pages.fresh(100, large=True).any()


def test_a_library_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise OSError("Could not find/load shared object file 'libllvmlite.so'")

    entries = [SimpleNamespace(name="broken", load=load)]
    monkeypatch.setattr(discovery, "installed", lambda group: entries)
    with pytest.raises(BackendError, match="'broken' cannot be imported: Could not find/load shared object"):
        discovery.backend("broken")


def test_a_command_says_it_in_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(mmap, "mmap", full)
    done = CliRunner().invoke(app, ["info", str(path)])
    assert done.exit_code == 1
    assert done.stderr == "graphml: not enough memory\n"
