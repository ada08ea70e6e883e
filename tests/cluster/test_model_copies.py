"""A model's files on a node: found by their hash, or received whole, or not taken."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphml.cluster import model_copies
from graphml.cluster.model_copies import ModelFiles, code_digest, facts_of, local_copy
from graphml.errors import UsageError, WeightsError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_copies, "CHUNK", 1000)
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text('{"a": 1}')
    (folder / "README.md").write_text("no part of the model")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 17)
    return folder


def sender(source: Path, facts: ModelFiles, spoiled: int = -1) -> model_copies.Read:
    def read(number: int, offset: int) -> bytes:
        data = (source / facts.files[number].name).read_bytes()[offset : offset + model_copies.CHUNK]
        return data[::-1] if number == spoiled else data

    return read


def none(number: int, offset: int) -> bytes:
    raise AssertionError("nothing is sent")


def test_files_at_the_same_path_are_taken_by_their_hash(folder: Path) -> None:
    facts = facts_of(folder, [folder / "model.safetensors"])
    assert [file.name for file in facts.files] == [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
    ]
    assert local_copy(facts, none) == folder
    single = facts_of(folder / "model.safetensors", [folder / "model.safetensors"])
    assert local_copy(single, none) == folder / "model.safetensors"


def test_what_is_not_there_or_differs_is_sent_once(folder: Path) -> None:
    facts = facts_of(folder, [folder / "model.safetensors"])
    other = folder.with_name("elsewhere")
    shutil.copytree(folder, other)
    (folder / "model.safetensors").write_bytes(bytes(256 * 17))  # the same size, other bytes
    path = local_copy(facts, sender(other, facts))
    assert path != folder
    assert (path / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert (path / "1_Pooling" / "config.json").read_text() == '{"a": 1}'
    assert local_copy(facts, none) == path


def test_other_bytes_than_wanted_are_not_kept(folder: Path) -> None:
    facts = facts_of(folder, [folder / "model.safetensors"])
    other = folder.with_name("elsewhere")
    folder.rename(other)
    with pytest.raises(WeightsError, match=r"model\.safetensors: wanted the hash [0-9a-f]{64}; got"):
        local_copy(facts, sender(other, facts, spoiled=2))
    assert not list((folder.parent / "cache").rglob("model.safetensors"))


def test_a_full_disk_is_noticed_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(folder, [folder / "model.safetensors"])
    folder.rename(folder.with_name("elsewhere"))
    monkeypatch.setattr(model_copies.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UsageError, match="wanted room for 4362 bytes"):
        local_copy(facts, none)


def test_the_hash_of_the_code_is_that_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_digest()
    assert before == code_digest()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "errors.py"))
    assert code_digest() != before
