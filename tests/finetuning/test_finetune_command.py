"""`graphml finetune`: from a file of examples to an adapter that `run` takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphml.cli.main import app
from tests.stories import STORIES

ROWS = [{"text": f"The {thing} sat on a mat."} for thing in ("frog", "cat", "dog", "car")]


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return str(path)


def test_it_trains_draws_and_says_how_to_use_it(data: str, tmp_path: Path) -> None:
    output, plot = tmp_path / "a.gguf", tmp_path / "a.png"
    told = ["finetune", str(STORIES), data, "-o", str(output), "-r", "4", "--lr", "0.01", "--epochs", "5"]
    result = CliRunner().invoke(app, [*told, "--validation", data, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    first, last = (float(line.split()[1]) for line in (lines[0], lines[-3]))
    assert last < first
    assert lines[-2].startswith("validation: ")
    assert lines[-1].endswith(f"--lora {output}")
    assert "4 examples" in result.stderr
    assert "of memory" in result.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(app, told)
    assert again.exit_code == 2
    assert "is there already; --force overwrites it" in again.output
    forced = CliRunner().invoke(app, [*told, "--force", "--json", "--steps", "2"])
    assert len(json.loads(forced.stdout)["steps"]) == 2
    run = CliRunner().invoke(app, ["run", str(STORIES), "The frog", "--lora", str(output), "-n", "4"])
    assert run.exit_code == 0, run.output


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
