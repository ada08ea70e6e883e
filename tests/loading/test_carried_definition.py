"""A file that carries the definition of its architecture: shown to all, run where it is trusted alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import graphml_models.llama
import numpy as np
import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import ArchitectureError, UsageError, WeightsError
from graphml.loading.carried_definition import LARGEST, SOURCE
from graphml.loading.discovery import DEFINITION
from tests import tiny_model

TEXT = Path(graphml_models.llama.__file__).read_text(encoding="utf-8")
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()


def written(folder: Path, text: str = TEXT, digest: str = DIGEST) -> Path:
    return tiny_model.write(
        folder / "own.gguf", architecture="imported-tiny", texts={SOURCE: text, DEFINITION: digest}
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_run_where_a_person_trusts_it(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path)
    with graphml.load(tiny_model.write(tmp_path / "llama.gguf"), "reference") as model:
        wanted = model.session().eval([3, 4, 5])
    with graphml.load(path, "reference", trust_arch=True) as model:
        assert np.array_equal(model.session().eval([3, 4, 5]), wanted)
    (folder,) = (cache / "definitions").iterdir()
    assert folder.name == DIGEST
    assert folder.stat().st_mode & 0o077 == 0


def test_it_is_not_run_otherwise_and_the_error_says_how(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path, "raise SystemExit(3)\n", hashlib.sha256(b"raise SystemExit(3)\n").hexdigest())
    with pytest.raises(ArchitectureError, match=r"Python code in the file.*--definition.*--trust-arch"):
        graphml.load(path, "reference")
    assert not (cache / "definitions").exists()


def test_a_hash_that_is_named_before_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setenv("GRAPHML_TRUSTED_ARCHS", "0" * 64)
    with pytest.raises(ArchitectureError, match=DIGEST):
        graphml.load(path, "reference")
    monkeypatch.setenv("GRAPHML_TRUSTED_ARCHS", f"{'0' * 64}, {DIGEST.upper()}")
    graphml.load(path, "reference").close()
    monkeypatch.setenv("GRAPHML_TRUSTED_ARCHS", "all")
    with pytest.raises(UsageError, match="GRAPHML_TRUSTED_ARCHS: wanted SHA-256"):
        graphml.load(path, "reference")


@pytest.mark.parametrize(
    ("text", "digest", "said"),
    [(TEXT + "\n", DIGEST, "wanted what has the hash"), ("#" * (LARGEST + 1), DIGEST, "wanted at most")],
)
def test_what_its_hash_does_not_say_is_never_run(tmp_path: Path, text: str, digest: str, said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        graphml.load(written(tmp_path, text, digest), "reference", trust_arch=True)


def test_what_others_changed_in_the_cache_is_written_anew(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path)
    graphml.load(path, "reference", trust_arch=True).close()
    (kept,) = (cache / "definitions" / DIGEST).glob("*.py")
    kept.write_text("raise SystemExit(3)\n", encoding="utf-8")
    graphml.load(path, "reference", trust_arch=True).close()
    assert kept.read_text(encoding="utf-8") == TEXT


def test_the_command_line_shows_and_runs_it(tmp_path: Path) -> None:
    path = str(written(tmp_path))
    shown = CliRunner().invoke(app, ["info", path, "--definition"])
    assert shown.stdout == TEXT
    words = ["run", path, "hello", "-n", "2", "--backend", "reference"]
    assert "--trust-arch" in CliRunner().invoke(app, words).output
    assert CliRunner().invoke(app, [*words, "--trust-arch"]).exit_code == 0
    plain = str(tiny_model.write(tmp_path / "llama.gguf"))
    assert "carries none" in CliRunner().invoke(app, ["info", plain, "--definition"]).output
