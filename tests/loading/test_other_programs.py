"""Models of ollama and LM Studio: listed and opened where they are, and left to their programs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from graphml.errors import UsageError
from graphml.loading.download.stored import named, remove, stored_models
from graphml.loading.fetch import names_model, resolve

GGUF = b"GGUF of a model"


def manifest(root: Path, name: str, layers: object) -> Path:
    path = root / "manifests" / "registry.ollama.ai" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return path


def layer(data: bytes, kind: str = "application/vnd.ollama.image.model") -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a model of each program, and a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    ollama = tmp_path / ".ollama" / "models"
    (ollama / "blobs").mkdir(parents=True)
    (ollama / "blobs" / f"sha256-{hashlib.sha256(GGUF).hexdigest()}").write_bytes(GGUF)
    template = layer(b"x", "application/vnd.ollama.image.template")
    manifest(ollama, "library/tiny/latest", [template, layer(GGUF)])
    manifest(ollama, "me/mine/q4", [layer(GGUF)])
    studio = tmp_path / ".lmstudio" / "models" / "maker" / "repo"
    studio.mkdir(parents=True)
    (studio / "small-Q4_0.gguf").write_bytes(GGUF)
    (studio / "mmproj-small.gguf").write_bytes(GGUF)
    return ollama


def listed() -> dict[str, str]:
    return {model.name: model.place for model in stored_models()}


def test_they_are_listed_by_names_that_open_them(machine: Path) -> None:
    assert listed() == {
        "ollama:tiny:latest": "ollama", "ollama:me/mine:q4": "ollama",
        "lmstudio:maker/repo/small-Q4_0.gguf": "lmstudio",
    }  # fmt: skip
    for name in (*listed(), "ollama:tiny"):
        assert names_model(name)
        assert resolve(name).read_bytes() == GGUF


def test_ollamas_folder_may_be_elsewhere(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.rename(tmp_path / "other")
    assert "ollama:tiny:latest" not in listed()
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "other"))
    assert "ollama:tiny:latest" in listed()


def test_registries_are_kept_apart(machine: Path) -> None:
    other = b"GGUF of another model"
    (machine / "blobs" / f"sha256-{hashlib.sha256(other).hexdigest()}").write_bytes(other)
    path = machine / "manifests" / "hf.co" / "me" / "mine" / "q4"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"layers": [layer(other)]}))
    assert resolve("ollama:me/mine:q4").read_bytes() == GGUF
    assert resolve("ollama:hf.co/me/mine:q4").read_bytes() == other


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"'ollama:tinny'.*Did you mean 'ollama:tiny:latest'"):
        resolve("ollama:tinny")


def test_they_are_left_to_their_programs(machine: Path) -> None:
    models = stored_models()
    for name in listed():
        (model,) = named(models, name)
        with pytest.raises(UsageError, match="wanted that program to remove it"):
            remove(model)
        assert model.files[0].exists()


@pytest.mark.parametrize(
    "layers",
    [
        "nonsense",
        [1],
        [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}],
        [layer(b"another file, which is not there")],
        [[]] * 10,
    ],
)
def test_a_manifest_that_is_wrong_is_passed_over(machine: Path, layers: object) -> None:
    manifest(machine, "library/broken/latest", layers)
    (machine / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "text").write_bytes(b"{" * 5000)
    assert "ollama:broken:latest" not in listed()
    assert "ollama:tiny:latest" in listed()
