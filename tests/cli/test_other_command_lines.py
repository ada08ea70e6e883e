"""What people type from other programs: done where it means the same, else the error says what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from graphml.cli.main import COMMANDS, app
from graphml.cli.other_command_lines import (
    ANY_OPTIONS,
    EXTRA_WORDS,
    OPTIONS,
    OTHER_COMMANDS,
    SAME_COMMANDS,
)
from tests.cli.test_commands import REFERENCE, graphml_command
from tests.stories import STORIES


def test_the_tables_name_commands_and_hide_none() -> None:
    assert not set(COMMANDS) & {*SAME_COMMANDS, *OTHER_COMMANDS}
    assert set(SAME_COMMANDS.values()) <= {*COMMANDS, *OTHER_COMMANDS}
    assert set(EXTRA_WORDS) <= set(COMMANDS)
    root: Any = typer.main.get_command(app)
    options = {
        name: {flag for param in root.get_command(None, name).params for flag in param.opts}
        for name in COMMANDS
    }
    for command, option in OPTIONS:
        assert option not in options[command]
        assert option not in ANY_OPTIONS
    for option in ANY_OPTIONS:
        assert option not in options["run"]


def test_a_command_of_the_same_meaning_is_done() -> None:
    assert "short names" in graphml_command("ls").stdout
    assert graphml_command("list").stdout == graphml_command("models").stdout
    assert graphml_command("show", STORIES).stdout == graphml_command("info", STORIES).stdout
    assert graphml_command("download", STORIES).stdout == f"{STORIES}\n"
    run = [STORIES, "-p", "Once", "-n", 3, "--temp", 0, *REFERENCE]
    assert graphml_command("generate", *run).stdout == graphml_command("run", *run).stdout


def test_help_is_a_command_too() -> None:
    assert graphml_command("help").stdout == graphml_command("--help").stdout
    assert graphml_command("help", "pull").stdout == graphml_command("pull", "--help").stdout


def test_a_prompt_or_a_model_without_a_command_names_run() -> None:
    for word, wanted in (
        ("How are you?", "run 'How are you?'"),
        ("model.gguf", "run model.gguf"),
        ("smollm2", "run smollm2"),
    ):
        said = " ".join(graphml_command(word, code=2).output.split())
        assert f"Did you mean `graphml {wanted}`?" in said


@pytest.mark.parametrize("name", OTHER_COMMANDS)
def test_a_command_of_another_meaning_names_ours(name: str) -> None:
    said = " ".join(graphml_command(name, code=2).output.split())
    assert f"No such command '{name}'. Here {OTHER_COMMANDS[name]}." in said


@pytest.mark.parametrize(("arguments", "said"), [
    (["compare", STORIES, STORIES], "`graphml diff A B` compares graphs"),
    (["chat", STORIES, "Hello"], "answers one prompt"),
    (["perplexity", STORIES, "text.txt"], "-f FILE names the text"),
    (["explain", STORIES, "layers.0.q"], "--node NAME names the node"),
    (["bench", "-p", 4, STORIES], "-m MODEL names the model"),
    (["bench", "nonsense"], "-m MODEL names the model"),
    (["chat", STORIES, "-p", "Hello"], "-p: `graphml run MODEL"),
    (["embed", STORIES, "x", "--normalize"], "--normalize: embeddings have length 1"),
    (["profile", STORIES, "-o", "x.json"], "-o: the result is on stdout"),
    (["compare", STORIES, "--a", "cpu"], "--a: wanted --backend A,B"),
    (["run", STORIES, "Hi", "--device", "cuda"], "--device: --backend chooses"),
    (["run", STORIES, "Hi", "-st", "-no-cnv"], "-st: `graphml run` answers one prompt"),
    (["run", STORIES, "Hi", "--verbose"], "--verbose: on a terminal the speed is printed"),
    (["run", STORIES, "Hi", "-fa", "on", *REFERENCE], "-fa: attention is always"),
    (["run", STORIES, "Hi", "-ctk", "q8_0"], "-ctk: --kv KEYS/VALUES"),
    (["bench", STORIES, "-ctk", "f16", "--nonsense"], "No such option: --nonsense"),  # it has -ctk
    (["serve", STORIES, "-ctk", "q8_0", "--no-mmap", "--port", "99999"], "graphml: --port: wanted"),
    # Errors of the library name the flag, not its argument.
    (["embed", STORIES, "x", *REFERENCE], "--pooling: "),
    (["embed", STORIES, "x", "--pooling", "median", *REFERENCE], "graphml: --pooling: wanted one of"),
    (["run", STORIES, "Hi", "--quant", "q5", *REFERENCE], "graphml: --quant: wanted one of"),
])  # fmt: skip
def test_an_error_says_what_to_type(arguments: list[object], said: str) -> None:
    assert said in " ".join(graphml_command(*arguments, code=2).stderr.split())


def test_bench_takes_a_model_as_its_first_word() -> None:
    options = ["-p", 4, "-n", 0, "-r", 1, "-o", "csv", *REFERENCE]
    rows = graphml_command("bench", STORIES, *options).stdout.splitlines()
    by_option = graphml_command("bench", "-m", STORIES, *options).stdout.splitlines()
    assert len(rows) == len(by_option) == 2
    assert STORIES.name in rows[1]


def test_the_form_of_bench_is_no_file() -> None:
    said = graphml_command("bench", STORIES, "-o", "out.csv", code=2).stderr
    assert "--output: wanted a form of stdout, md, csv" in said
    assert "-o csv > out.csv" in said


def test_scripts_of_completion() -> None:
    for shell, mark in (("bash", "complete -o default"), ("zsh", "compdef"), ("fish", "complete --command")):
        script = graphml_command("completion", shell).stdout
        assert mark in script
        assert "_GRAPHML_COMPLETE" in script
    assert "wanted one of bash, zsh" in graphml_command("completion", "csh", code=2).stderr


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
