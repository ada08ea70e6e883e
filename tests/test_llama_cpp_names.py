"""Every architecture and tokenizer of the recorded llama.cpp, but those that are named here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import llama_cpp_names

LACKING: set[str] = set()
"""What is not made yet."""


def test_graphml_has_what_llama_cpp_has() -> None:
    release, names = llama_cpp_names.recorded()
    assert release.count(".") == 2
    assert [len(of) for of in names.values()] == [151, 11, 91]  # else the sources are written otherwise
    assert set(llama_cpp_names.lacking(names)) == LACKING


def test_a_name_that_is_unknown_is_lacking() -> None:
    names = {"architecture": ["llama", "ernie4_5-moe", "new-one"], "tokenizer": ["rwkv9"], "pre": ["next"]}
    assert llama_cpp_names.lacking(names) == ["architecture new-one", "tokenizer rwkv9", "pre next"]


def test_pip_that_cannot_ask_is_told_from_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_ask(*arguments: str) -> str:
        raise subprocess.CalledProcessError(1, [sys.executable, "-m", "pip", *arguments])

    monkeypatch.setattr(llama_cpp_names, "_pip", cannot_ask)
    assert llama_cpp_names.run(record=False) == llama_cpp_names.NOT_ASKED
    monkeypatch.setattr(llama_cpp_names, "_pip", lambda *arguments: "")
    with pytest.raises(IndexError):  # of an answer without a release
        llama_cpp_names.run(record=False)


@pytest.mark.parametrize(
    ("code", "ends", "said"),
    [(0, 0, ""), (llama_cpp_names.NOT_ASKED, 0, "PyPI cannot be asked"), (1, 1, ""), (2, 2, "")],
)
def test_continuous_integration_ends_where_the_program_fails(
    code: int, ends: int, said: str, tmp_path: Path
) -> None:
    script = (Path(__file__).parents[1] / ".ci" / "run").read_text()
    part = script[script.index("asked=0") : script.index("esac") + 4]
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {code}\n")
    python.chmod(0o755)
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", part], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == ends
    assert said in ran.stdout
    assert bool(said) == bool(ran.stdout)
