"""Files on command lines: for a text, by their place, missing, or with an ending that contradicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import REFERENCE, graphml_command
from tests.stories import STORIES


def test_a_text_by_its_place_is_the_file(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a little girl. " * 20)
    options = ["-c", 32, "--chunks", 1, *REFERENCE]
    wanted = graphml_command("perplexity", STORIES, "-f", text, *options).stdout
    assert graphml_command("perplexity", STORIES, text, *options).stdout == wanted
    assert graphml_command("perplexity", "-m", STORIES, text, *options).stdout == wanted
    for place in ([text], ["-f", text]):
        written = json.loads(graphml_command("perplexity", STORIES, *place, *options, "--json").stdout)
        assert (written["file"], written["chunks"]) == (str(text), 1)


def test_a_file_stands_for_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.json").write_text('{"const": "Lily"}')
    Path("one.gbnf").write_text('root ::= "Lily"')
    Path("one.lark").write_text('start: "Lily"')
    run = ["run", STORIES, "Once", "-n", 8, "--temp", 0, *REFERENCE]
    for options, wanted in (
        (["--json-schema", "one.json"], '"Lily"\n'),
        (["-jf", "one.json"], '"Lily"\n'),
        (["--grammar", "one.gbnf"], "Lily\n"),
        (["--lark", "one.lark"], "Lily\n"),
    ):
        assert graphml_command(*run, *options).stdout == wanted
    missing = graphml_command(*run, "--json-schema", "two.json", code=2).stderr
    assert "--json-schema: two.json: no such file" in missing
    both = graphml_command(*run, "--grammar", 'root ::= "a"', "--grammar-file", "one.gbnf", code=2).stderr
    assert "--grammar, --grammar-file: wanted one of them; got both" in both


def test_a_missing_file_names_those_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("smollm-q4.gguf", "smollm-q4.txt", "qwen.gguf"):
        Path(name).touch()
    for typed in ("smoll-q4.gguf", "smollm-q4.ggfu", str(tmp_path / "smoll-q4.gguf"), "./smollm-q8.gguf"):
        said = graphml_command("run", typed, "Hi", code=2).stderr
        assert "Did you mean 'smollm-q4.gguf' in " in said
        assert "qwen" not in said
    assert "Did you mean" not in graphml_command("run", "./other.bin", "Hi", code=2).stderr


@pytest.mark.parametrize(("option", "command"), [
    ("--output", ["graph", STORIES, "-o", "graph.svg"]),
    ("--format dot, --output graph.html", ["graph", STORIES, "-f", "dot", "-o", "graph.html"]),
    ("--graph", ["profile", STORIES, "--graph", "graph.html"]),
    ("--html", ["diff", STORIES, "--fuse-b", "none", "--html", "graph.json"]),
    ("--output", ["report", STORIES, "-o", "report.txt"]),
    ("--output", ["new-arch", "mine", "-o", "mine.json"]),
])  # fmt: skip
def test_an_ending_that_contradicts_is_refused(
    option: str, command: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"graphml: {option}" in graphml_command(*command, code=2).stderr
    assert not list(tmp_path.iterdir())
