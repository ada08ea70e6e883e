"""Kernels that further processes compile: the same code, and whatever goes wrong there is done here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from graphml_cpu import compile_workers, compiler, kernel_cache, kernel_compilation, machine_code, target
from graphml_cpu.compile_workers import as_line, of_line, workers_for
from graphml_cpu.compiler import KernelRef, compile_kernels

from graphml.errors import BackendError

MODULE = "cpu_sample_kernels"
REFS = [KernelRef(name, MODULE, "make_unary", (name,)) for name in ("absolute", "erf", "exp", "log")]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, a process that has nothing loaded, and one other that pays at once."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path))
    monkeypatch.setenv("GRAPHML_COMPILE_PROCESSES", "2")
    monkeypatch.setattr(compiler, "_loaded", {})
    monkeypatch.setattr(machine_code, "_loaded", {})
    monkeypatch.setattr(compile_workers, "_KERNELS_EACH", 2)
    return tmp_path


def only_here(monkeypatch: pytest.MonkeyPatch) -> list[KernelRef]:
    """The kernels that this process compiles from now on."""
    seen: list[KernelRef] = []
    make = kernel_compilation.module_texts
    monkeypatch.setattr(kernel_compilation, "module_texts", lambda ref: (seen.append(ref), make(ref))[1])
    return seen


def codes() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in kernel_cache.folder().glob("*.kernel")}


def test_the_code_is_that_of_one_process(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ended,) = deque([KernelRef("x", MODULE, "make_slots", (1, True, None, 1.5, "a"))])
    assert of_line(as_line(ended)) == ended
    left = deque(REFS[1:])
    with workers_for(left, kernel_cache.folder()) as workers:
        workers.wait()  # nobody takes any here
        assert sorted(ref.name for ref in workers.done) == sorted(ref.name for ref in REFS[1:])
    here, seen = only_here(monkeypatch), list[tuple[int, int]]()
    found = compile_kernels(REFS, lambda done, total: seen.append((done, total)))
    assert here == REFS[:1]
    assert seen == [(1, 1)]
    assert list(found) == [ref.name for ref in REFS]
    others = codes()
    shutil.rmtree(fresh)
    monkeypatch.setenv("GRAPHML_COMPILE_PROCESSES", "1")
    monkeypatch.setattr(compiler, "_loaded", {})
    compile_kernels(REFS)
    assert codes() == others


def test_both_take_kernels_until_none_is_left(fresh: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = compile_kernels(REFS, lambda done, total: seen.append((done, total)))
    assert sorted(found) == sorted(ref.name for ref in REFS)
    assert seen == [(done, 4) for done in range(1, 5)]


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-c", "pass"],
        [sys.executable, "-c", "print('next', flush=True); input()"],
        [sys.executable, "-c", "print('next', flush=True); input(); print('done', flush=True)"],
        [sys.executable, "-c", "print('done', flush=True)"],
        ["/nothing/of/this/name"],
    ],
    ids=["ends", "ends with one", "lies", "has done what it was not given", "cannot be started"],
)
def test_what_others_fail_at_is_compiled_here(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    popen, here = subprocess.Popen, only_here(monkeypatch)
    monkeypatch.setattr(subprocess, "Popen", lambda _, **more: popen(command, **more))
    assert sorted(compile_kernels(REFS)) == sorted(ref.name for ref in REFS)
    assert sorted(ref.name for ref in here) == sorted(ref.name for ref in REFS)


def test_an_error_of_a_kernel_is_told_with_its_reason(fresh: Path) -> None:
    with pytest.raises(BackendError, match="undefined_name"):
        compile_kernels([*REFS, KernelRef("bad", MODULE, "make_wrong")])


def test_no_other_process_where_it_cannot_help(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = compile_workers._count
    assert (count(4), count(3), count(1), count(100)) == (1, 1, 0, 1)
    monkeypatch.setenv("GRAPHML_COMPILE_PROCESSES", "4")
    assert (count(4), count(100)) == (2, 3)
    monkeypatch.setattr(target, "_foreign", ["neon"])
    assert count(100) == 0
    monkeypatch.setattr(target, "_foreign", [])
    monkeypatch.setattr(sys, "executable", "/usr/bin/an-editor")  # which embeds Python
    assert count(100) == 0
    with workers_for(deque(REFS), None) as workers:  # kernels are not kept
        assert not workers._processes
