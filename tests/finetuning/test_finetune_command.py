"""`graphml finetune`: from a file of examples to an adapter that `run` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphml.cli.main import app
from tests import tiny_model
from tests.docs.pages import ROOT, blocks
from tests.stories import STORIES

PAGE = ROOT / "docs" / "architectures.md"

ROWS = [{"text": f"The {thing} sat on a mat."} for thing in ("frog", "cat", "dog", "car")]


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return str(path)


def test_it_trains_draws_and_says_how_to_use_it(data: str, tmp_path: Path) -> None:
    output, plot = tmp_path / "a.gguf", tmp_path / "a.png"
    words = ["finetune", str(STORIES), data, "-o", str(output), "-r", "4", "--lr", "0.01", "--epochs", "5"]
    result = CliRunner().invoke(app, [*words, "--validation", data, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    first, last = (float(line.split()[1]) for line in (lines[1], lines[-3]))
    assert last < first
    assert lines[-2].startswith("validation: ")
    assert lines[-1].endswith(f"--lora {output}")
    assert "4 examples" in result.stderr
    assert "of memory" in result.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "is there already; --force overwrites it" in again.output
    forced = CliRunner().invoke(app, [*words, "--force", "--json", "--steps", "2"])
    assert len(json.loads(forced.stdout)["steps"]) == 2
    run = CliRunner().invoke(app, ["run", str(STORIES), "The frog", "--lora", str(output), "-n", "4"])
    assert run.exit_code == 0, run.output


def test_it_takes_an_architecture_of_ones_own(tmp_path: Path) -> None:
    (source,) = [block.text for block in blocks(PAGE) if block.said("file") == "small.py"]
    arch, data = tmp_path / "small.py", tmp_path / "data.jsonl"
    arch.write_text(source, encoding="utf-8")
    data.write_text('{"text": "hello world"}', encoding="utf-8")
    model = tiny_model.write(tmp_path / "novel.gguf", architecture="novel")
    words = ["finetune", str(model), str(data), "-o", str(tmp_path / "a.gguf"), "--steps", "1"]
    assert "unknown architecture" in CliRunner().invoke(app, words).output
    done = CliRunner().invoke(app, [*words, "--arch", str(arch)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.jsonl", "-o", "a.gguf"], "DATA.jsonl: nothing.jsonl: no such file"),
        (["DATA", "-o", "a.bin"], "--output: wanted a name that ends in .gguf"),
        (["DATA"], "--output: wanted the adapter's file"),
        (["-o", "a.gguf"], "wanted the examples"),
        (["DATA", "-o", "a.gguf", "--plot", "a.txt"], "--plot: wanted a file"),
        (["DATA", "-o", "a.gguf", "--targets", "attn_z"], "--targets: wanted some of attn_q"),
        (["DATA", "-o", "a.gguf", "--rank", "0"], "--rank"),
    ],
)
def test_wrong_usage_is_named_before_anything_is_trained(data: str, words: list[str], said: str) -> None:
    arguments = [data if word == "DATA" else word for word in words]
    result = CliRunner().invoke(app, ["finetune", str(STORIES), *arguments])
    assert result.exit_code == 2
    assert said in result.output
