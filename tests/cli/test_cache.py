"""`graphml cache`: everything below the cache folder is listed by kind, and removed by kind, age and size."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from graphml.bench.made_models import bench_model
from graphml.system.cache_contents import KINDS, OTHERS
from tests.cli.test_commands import graphml_command


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("GRAPHML_CACHE", str(root))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    old = time.time() - 40 * 86_400
    for name, n_bytes, used in (
        ("models/small.gguf", 3000, None), ("kernels/new/a.bin", 200, None), ("kernels/old/b.bin", 100, old),
        ("tuning.json", 10, None), ("elsewhere/x", 7, None),
    ):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(n_bytes))
        if used is not None:
            os.utime(path, (used, used))
            os.utime(path.parent, (used, used))
    return root


def entries(*options: object) -> dict[str, int]:
    listed = json.loads(graphml_command("cache", *options, "--json").stdout)["entries"]
    return {f"{entry['kind']}/{Path(entry['path']).name}": entry["n_bytes"] for entry in listed}


def test_every_kind_is_listed_with_its_size(folder: Path) -> None:
    assert entries() == {
        "models/small.gguf": 3000, "kernels/new": 200, "kernels/old": 100, "tuning.json/tuning.json": 10,
        "elsewhere/x": 7,
    }  # fmt: skip
    table = graphml_command("cache").stdout
    assert str(folder) in table
    for kind in ("models", "kernels", "tuning.json"):
        assert KINDS[kind] in table
    assert OTHERS in table
    assert "small.gguf" not in table
    assert "small.gguf" in graphml_command("cache", "models").stdout


def test_kind_age_and_size_choose(folder: Path) -> None:
    assert entries("kernels") == {"kernels/new": 200, "kernels/old": 100}
    assert entries("--older-than", 30) == {"kernels/old": 100}
    assert entries("--over", "0.1K") == {"models/small.gguf": 3000, "kernels/new": 200}
    assert entries("models", "--over", "1M") == {}


def test_what_is_chosen_is_removed_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (folder / "kernels" / "link").symlink_to(outside)
    refused = graphml_command("cache", "kernels", "--remove", code=2).stderr
    assert "wanted --yes, or a terminal to ask on" in refused
    assert graphml_command("cache", "kernels", "--older-than", 30, "--remove", "-y").stdout == "freed 100 B\n"
    assert not (folder / "kernels" / "old").exists()
    graphml_command("cache", "kernels", "--remove", "-y")
    assert list((folder / "kernels").iterdir()) == []
    assert (outside / "kept").exists()
    assert (folder / "models" / "small.gguf").exists()


def test_what_is_being_written_stays(folder: Path) -> None:
    partial = folder / "partial" / "big.gguf"
    partial.parent.mkdir()
    partial.touch()
    (folder / "partial" / "big.gguf.lock").touch()
    assert entries("partial") == {"partial/big.gguf": 0}
    done = graphml_command("cache", "--remove", "-y", code=1)
    assert "written just now" in done.stderr
    assert done.stdout == "freed 3.2 KiB\n"
    assert partial.exists()
    assert entries() == {"partial/big.gguf": 0}
    assert graphml_command("cache", "models", "--remove").stdout == "freed 0 B\n"


def test_a_made_model_is_found(folder: Path) -> None:
    made = bench_model("tiny", "Q8_0")
    assert entries("bench")[f"bench/{made.name}"] == made.stat().st_size
    graphml_command("cache", "bench", "--remove", "-y")
    assert not made.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [(["walls"], "no kind 'walls'"), (["--over", "much"], "wanted a size such as 500M")],
)
def test_wrong_kinds_and_sizes(options: list[str], message: str) -> None:
    assert message in graphml_command("cache", *options, code=2).stderr


def test_an_empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "none"))
    assert entries() == {}
    assert "all" in graphml_command("cache").stdout
