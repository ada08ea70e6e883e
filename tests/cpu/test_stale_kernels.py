"""Kernels of other packages: what one of them reaches is changed, and what runs is compiled of the new."""

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from graphml_cpu import compiler, kernel_compilation, machine_code
from graphml_cpu.compiler import KernelRef, compile_kernels

REF = KernelRef("stale", "stale_kernel", "make_stale")
FILES = {
    "stale_kernel": """
        import stale_numbers as numbers
        from graphml_cpu.compiler import Address, Int
        from graphml_cpu.simd import F32, WIDTH, load, store
        from stale_helper import changed
        from stale_numbers import SETTINGS, WEIGHTS

        def make_stale():
            def stale(ith: Int, nth: Int, x: Address, out: Address) -> None:
                value = changed(load(F32, x)) * SETTINGS.factor * numbers.FACTOR
                for weight in range(len(WEIGHTS)):
                    value = value * WEIGHTS[weight]
                store(out, value * 1.0)
            return stale
        """,
    "stale_helper": """
        from functools import cache
        from graphml_cpu.frontend import inline
        from graphml_cpu.frontend.operation import operation
        from graphml_cpu.frontend.types import int64
        from graphml_cpu.simd import constant_table, load_f32, splat, F32
        from stale_content import CONTENT

        table = constant_table(CONTENT)

        @operation
        def one():
            return int64(), lambda builder: int64.llvm_type(1)

        @cache
        def made(factor):
            @inline
            def times(x, more=1.0):
                return x * factor * more
            return times

        times = made(1.0)

        @inline
        def changed(x):
            return times(x * 1.0) * splat(F32, load_f32(table())) * one()
        """,
    "stale_numbers": """
        from dataclasses import dataclass

        FACTOR = 1.0
        WEIGHTS = (1.0, 1.0)

        class Shared:
            shared = 1.0

        @dataclass(frozen=True)
        class Settings(Shared):
            own: float

            @property
            def factor(self):
                return self.own * self.shared

        SETTINGS = Settings(1.0)
        """,
    "stale_content": """
        import struct
        CONTENT = struct.pack("f", 1.0)
        """,
}
EDITS = {
    "the kernel": ("stale_kernel", "value * 1.0"),
    "a helper": ("stale_helper", "x * 1.0"),
    "a helper's default": ("stale_helper", "more=1.0"),
    "what a helper was made with": ("stale_helper", "made(1.0)"),
    "an operation": ("stale_helper", "llvm_type(1)"),
    "the bytes of a table": ("stale_content", '"f", 1.0'),
    "a number of another module": ("stale_numbers", "FACTOR = 1.0"),
    "an item of a tuple": ("stale_numbers", "1.0, 1.0"),
    "a number of an instance": ("stale_numbers", "Settings(1.0)"),
    "a number of a class": ("stale_numbers", "shared = 1.0"),
    "a property": ("stale_numbers", "self.own * 1"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a kernel, which can be imported, and an empty cache."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    where = tmp_path / "modules"
    where.mkdir()
    for name, text in FILES.items():
        (where / f"{name}.py").write_text(textwrap.dedent(text).replace("self.own *", "self.own * 1 *"))
    monkeypatch.syspath_prepend(str(where))
    return where


def edit(folder: Path, name: str) -> None:
    module, before = EDITS[name]
    path = folder / f"{module}.py"
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, before.replace("1", "2", 1)))


def result(monkeypatch: pytest.MonkeyPatch) -> tuple[float, int]:
    """What a new process gets of 1, and how many kernels it compiles."""
    compiled: list[KernelRef] = []
    real = kernel_compilation.module_texts
    monkeypatch.setattr(kernel_compilation, "module_texts", lambda ref: (compiled.append(ref), real(ref))[1])
    monkeypatch.setattr(compiler, "_loaded", {})
    monkeypatch.setattr(machine_code, "_loaded", {})
    for name in FILES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return ran(), len(compiled)


def ran() -> float:
    kernel = compile_kernels([REF])["stale"]
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    kernel(kernel.block(x=x.ctypes.data, out=out.ctypes.data))
    return float(out[0])


@pytest.mark.parametrize("name", EDITS)
def test_what_a_kernel_reaches_is_in_its_key(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert result(monkeypatch) == (1.0, 1)
    assert result(monkeypatch) == (1.0, 0)
    edit(folder, name)
    assert result(monkeypatch) == (2.0, 1)
    assert result(monkeypatch) == (2.0, 0)


def test_what_a_kernel_does_not_reach_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(monkeypatch) == (1.0, 1)
    with (folder / "stale_content.py").open("a") as file:
        file.write("OTHER = 3\n")
    assert result(monkeypatch) == (1.0, 0)


def test_a_module_that_is_loaded_anew_gives_new_code(folder: Path) -> None:
    """In the same process, of which other kernels have the helper's old code."""
    assert ran() == 1.0
    edit(folder, "a number of another module")
    edit(folder, "a helper")
    for name in ("stale_numbers", "stale_helper", "stale_kernel"):
        importlib.reload(sys.modules[name])
    assert ran() == 4.0


def test_other_processes_see_an_edit(folder: Path) -> None:
    code = f"import sys; sys.path[:0] = {[str(folder), str(Path(__file__).parent)]!r}\n"
    code += "from test_stale_kernels import ran\nprint(ran())"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def printed() -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert printed() == "1.0\n"
    edit(folder, "a helper")
    assert printed() == "2.0\n"
