"""The command `graphml import` with its process: with torch if a Python has it, else how it fails without."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app

PLAIN = Path(__file__).parents[1] / "data" / "imports" / "plain.py"
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
with_torch = pytest.mark.skipif(
    sys.executable == PYTHON and importlib.util.find_spec("torch") is None,
    reason="torch is not installed: pip install '.[authoring]', or name a Python in TORCH_PYTHON",
)


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["import", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@with_torch
def test_a_plain_module_becomes_a_file_that_runs(tmp_path: Path) -> None:
    arch, weights = tmp_path / "mine.py", tmp_path / "mine.gguf"
    page = tmp_path / "mine.html"
    given = ("-o", arch, "--weights", weights, "--report", page, "--python", PYTHON)
    code, told, error = run(f"module:{PLAIN}:e", *given)
    assert code == 0, error
    assert "every part agrees" in told
    assert "def build(g: Builder" in page.read_text()
    with graphml.load(weights, "reference", kv="f32", arch=arch) as model:
        assert model.session().eval([1, 2, 3]).shape == (97,)


@with_torch
def test_a_model_that_cannot_be_traced_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def make():\n    return 3 / 0\n")
    arch = tmp_path / "mine.py"
    code, _, error = run(
        f"module:{tmp_path / 'model.py'}:make",
        "-o",
        arch,
        "--weights",
        tmp_path / "w.gguf",
        "--python",
        PYTHON,
    )
    assert code == 2
    assert "division by zero" in error
    assert error.count("\n") == 1
    assert not arch.exists()


@pytest.mark.skipif(shutil.which("false") is None, reason="the system has no program `false`")
def test_a_process_that_fails_leaves_nothing(tmp_path: Path) -> None:
    arch, weights = tmp_path / "mine.py", tmp_path / "mine.gguf"
    code, told, error = run(f"module:{PLAIN}:e", "-o", arch, "--weights", weights, "--python", "false")
    assert (code, told) == (2, "")
    assert error.startswith("graphml: import: its process ended with 1")
    assert not arch.exists()
    assert not weights.exists()
