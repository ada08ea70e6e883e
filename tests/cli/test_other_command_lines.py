"""What people type from other programs: done where it means the same, else the error says what to type."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from graphml.cli.help_pages import flags_of
from graphml.cli.main import COMMANDS, app
from graphml.cli.options.answer_options import schema_of_fields
from graphml.cli.other_command_lines import (
    ANY_OPTIONS,
    EXTRA_WORDS,
    OPTIONS,
    OTHER_COMMANDS,
    SAME_COMMANDS,
    SAME_OPTIONS,
    in_our_words,
)
from graphml.cli.terminal.console import be_quiet, remark
from graphml.cli.value_flags import form_flag, near_flags, words_of
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
    for (command, option), ours in SAME_OPTIONS.items():
        assert option not in options[command]
        assert ours in options[command]
    for option in ANY_OPTIONS:
        assert option not in options["run"]


def test_a_command_of_the_same_meaning_is_done() -> None:
    assert "short names" in graphml_command("ls", "--all").stdout
    assert graphml_command("list").stdout == graphml_command("models").stdout
    assert graphml_command("show", STORIES).stdout == graphml_command("info", STORIES).stdout
    assert graphml_command("download", STORIES).stdout == f"{STORIES}\n"
    run = [STORIES, "-p", "Once", "-n", 3, "--temp", 0, *REFERENCE]
    assert graphml_command("generate", *run).stdout == graphml_command("run", *run).stdout


def test_two_backends_are_named_in_either_way() -> None:
    run = ["compare", STORIES, "-p", "Once", "--tokens", 2, "--format", "json"]
    both = graphml_command(*run, "--backend", "reference,cpu").stdout
    for words in (["--backend", "reference", "--against", "cpu"], ["--backend=reference", "--against=cpu"]):
        assert graphml_command(*run, *words).stdout == both
    assert graphml_command(*run, "--against", "reference").stdout == graphml_command(*run).stdout


def test_json_is_asked_for_in_either_way() -> None:
    run = ["compare", STORIES, "-p", "Once", "--tokens", 2, *REFERENCE, "--against", "cpu"]
    asked = json.loads(graphml_command(*run, "--json").stdout)
    assert asked.keys() == json.loads(graphml_command(*run, "--format", "json").stdout).keys()
    root: Any = typer.main.get_command(app)
    for name in ("profile", "compare", "bisect", "verify", "graph"):
        assert in_our_words(name, root.get_command(None, name), ["--json"]) == ["--format", "json"]


@pytest.mark.parametrize(("command", "theirs", "ours"), [
    ("graph", "--dot", "--format dot"),
    ("graph", "--html out.html", "--format html --output out.html"),
    ("graph", "m.gguf --html=out.html", "m.gguf --format html --output out.html"),
    ("graph", "--html m.gguf", "--format html --output m.gguf"),
    ("graph", "--dot m", "--format dot m"),  # no file's name
    ("graph", "--output-format json", "--format json"),
    ("graph", "-o json", "-o json"),  # its own: a file
    ("profile", "--csv", "--format csv"), ("compare", "--markdown", "--format md"),
    ("compare", "-o json", "--format json"), ("verify", "--output-format=markdown", "--format md"),
    ("bench", "--json", "--output json"), ("bench", "--format csv", "--output csv"),
    ("embed", "--format json", "--embd-output-format json"), ("embed", "--raw", "--embd-output-format raw"),
    ("test-op", "--json", "--output json"),
    ("plan", "--format json", "--json"), ("info", "-o json", "--json"), ("doctor", "--output=json", "--json"),
    ("cache", "--format table", ""), ("models", "-o text", ""),
])  # fmt: skip
def test_a_form_is_asked_for_as_other_programs_do(command: str, theirs: str, ours: str) -> None:
    root: Any = typer.main.get_command(app)
    assert in_our_words(command, root.get_command(None, command), theirs.split()) == ours.split()


@pytest.mark.parametrize(("command", "theirs", "ours"), [
    ("run", "--n-ctx 512 --context-length=64", "--ctx-size 512 --ctx-size=64"),
    ("run", "--num_ctx 512", "--ctx-size 512"),
    ("run", "--num-threads 2 --repetition-penalty 1.1", "--threads 2 --repeat-penalty 1.1"),
    ("run", "--tokens 4 --greedy --stats", "--max-tokens 4 --temp 0 --verbose"),
    ("run", "--device cpu", "--device cpu"),  # other values: the error says which
    ("bench", "--prompt 8 --gen 2 --runs 3", "--n-prompt 8 --n-gen 2 --repetitions 3"),
    ("profile", "--iterations 2", "--rounds 2"),
])  # fmt: skip
def test_options_have_the_names_of_other_libraries_too(command: str, theirs: str, ours: str) -> None:
    root: Any = typer.main.get_command(app)
    assert in_our_words(command, root.get_command(None, command), theirs.split()) == ours.split()


def test_words_of_an_option_are_those_that_it_accepts() -> None:
    root: Any = typer.main.get_command(app)
    for command in ("graph", "profile", "compare", "bisect", "verify", "bench", "embed", "test-op"):
        own = flags_of(root.get_command(None, command))
        words = words_of(own[str(form_flag(own))])
        assert "json" in words
        for word in {f"--{word}" for word in words} - set(own):
            assert in_our_words(command, root.get_command(None, command), [word])[:1] != [word]


def test_an_option_that_is_a_value_or_near_is_named() -> None:
    def said(*words: object) -> str:
        return " ".join(graphml_command(*words, code=2).stderr.split())

    assert "--q8: no such option; did you mean `--quant q8`?" in said("run", STORIES, "Hi", "--q8")
    assert "(Possible options: --log-level)" in said("run", STORIES, "Hi", "--lgo-level", "info")
    assert "--embd-output-format" in said("embed", STORIES, "Hi", "--formt", "json")
    assert said("embed", STORIES, "Hi", "--frobnicate").endswith("No such option: --frobnicate")
    assert "wanted json, which is --json, or text; got 'yaml'" in said("plan", STORIES, "--format", "yaml")
    assert "-o: the result is on stdout: > FILE, as JSON with --json" in said("plan", STORIES, "-o", "x.txt")


def test_near_names_of_options_share_letters_or_words() -> None:
    root: Any = typer.main.get_command(app)
    own = flags_of(root.get_command(None, "embed"))
    assert list(near_flags(own, "--format")) == ["--embd-output-format"]
    assert list(near_flags(own, "--threds")) == ["--threads"]
    assert not near_flags(own, "--xyz")
    own = flags_of(root.get_command(None, "run"))
    assert list(near_flags(own, "--max-length")) == ["--max-tokens"]


def test_a_wrong_number_says_what_came() -> None:
    for words, wanted in (
        (["--temp", "abc"], "wanted a number; got 'abc'"),
        (["-n", "foo"], "wanted a whole number; got 'foo'"),
        (["--top-k", "-3"], "wanted at least 0; got '-3'"),
    ):  # fmt: skip
        assert wanted in " ".join(graphml_command("run", STORIES, "Hi", *words, code=2).stderr.split())


def test_near_commands_are_all_named_and_what_removes_comes_last() -> None:
    for word, wanted in (("rum", "'run' or 'rm'"), ("lst", "'list'"), ("pulll", "'pull'"), ("rmo", "'rm'")):
        assert f"No such command '{word}'. Did you mean {wanted}?" in graphml_command(word, code=2).output
    assert "Did you mean" not in graphml_command("frobnicate", code=2).output


def test_commands_that_are_ours_with_an_option() -> None:
    assert graphml_command("detokenize", STORIES, "403 407").stdout == (
        graphml_command("tokenize", "--decode", STORIES, "403 407").stdout
    )
    alike = graphml_command("similarity", STORIES, "a cat", "a dog", *REFERENCE).stdout
    assert alike == graphml_command("embed", STORIES, "a cat", "a dog", "--similarity", *REFERENCE).stdout


def test_words_behind_a_command_are_those_of_other_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "kernels" / "x"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"12345")
    assert graphml_command("cache", "list").stdout == graphml_command("cache").stdout
    assert graphml_command("cache", "dir").stdout == f"{tmp_path / 'cache'}\n"
    assert "wanted --yes" in graphml_command("cache", "clear", code=2).stderr
    assert kept.is_file()
    assert "freed" in graphml_command("cache", "clear", "--yes").stdout
    assert not kept.is_file()
    assert graphml_command("models", "ls").stdout == graphml_command("models").stdout
    assert graphml_command("models", "show", STORIES).stdout == graphml_command("info", STORIES).stdout
    assert graphml_command("gguf", "dump", STORIES).stdout == graphml_command("info", STORIES).stdout
    shown = graphml_command("completion", "bash").stdout
    assert "complete -o default -F _graphml_completion graphml" in shown
    assert "wanted one of bash, zsh, fish" in graphml_command("completion", "tcsh", code=2).stderr
    path = f"{tmp_path / 'graphml.toml'}\n"
    monkeypatch.setenv("GRAPHML_CONFIG", str(tmp_path / "graphml.toml"))
    assert graphml_command("config", "path").stdout == graphml_command("config").stdout == path
    assert "is not there" in graphml_command("config", "show", code=2).stderr
    (tmp_path / "graphml.toml").write_text("[run]\ntemp = 0.5\n")
    assert graphml_command("config", "show").stdout == "[run]\ntemp = 0.5\n"
    assert "wanted path or show; got 'set a 1'" in graphml_command("config", "set", "a", 1, code=2).stderr


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """The log and the terminal as they were, behind a test that changes them."""
    log = logging.getLogger("graphml")
    level, handlers = log.level, list(log.handlers)
    yield
    log.setLevel(level)
    log.handlers[:] = handlers
    be_quiet(False)


@pytest.mark.usefixtures("quiet_log")
def test_the_log_is_shown_by_an_option_and_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ["run", STORIES, "Once", "-n", 2, "--temp", 0, *REFERENCE]
    monkeypatch.setattr(logging.getLogger("graphml"), "propagate", False)  # of pytest's handlers
    assert "DEBUG" not in graphml_command(*run).stderr
    assert "DEBUG graphml.api.load_model: " in graphml_command(*run, "--log-level", "debug").stderr
    logging.getLogger("graphml").setLevel("WARNING")
    assert "DEBUG" not in graphml_command(*run).stderr
    assert "DEBUG" in graphml_command("--log-level=DEBUG", *run).stderr
    logging.getLogger("graphml").setLevel("WARNING")
    monkeypatch.setenv("GRAPHML_LOG", "debug")
    assert "opened as" in graphml_command(*run).stderr
    monkeypatch.setenv("GRAPHML_LOG", "loud")
    assert "GRAPHML_LOG: wanted debug, info, warning or error" in graphml_command(*run, code=2).stderr
    monkeypatch.delenv("GRAPHML_LOG")
    assert "--log-level: wanted one of debug" in graphml_command(*run, "--log-level", "x", code=2).stderr


@pytest.mark.usefixtures("quiet_log")
def test_quiet_is_without_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ["run", STORIES, "Once", "-n", 2, "--temp", 0, *REFERENCE]
    assert graphml_command(*run, "-q").stdout == graphml_command("-q", *run).stdout != ""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    remark("shown never")
    assert terminal.getvalue() == ""
    be_quiet(False)
    remark("shown")
    assert "shown" in terminal.getvalue()


def test_names_of_llama_server_are_those_of_run() -> None:
    run = ["run", STORIES, "Once", "--temp", 0, *REFERENCE]
    few = graphml_command(*run, "-n", 3).stdout
    for words in (["--predict", 3], ["-n", 3, "--typical", 1], ["-n", 3, "--batch-size", 64]):
        assert graphml_command(*run, *words).stdout == few


def test_version_is_a_command_too() -> None:
    assert graphml_command("version").stdout == graphml_command("--version").stdout != ""


def test_no_layers_on_a_gpu_is_so_without_one() -> None:
    run = ["run", STORIES, "Once", "-n", 3, "--temp", 0, *REFERENCE]
    assert graphml_command(*run, "-ngl", 0).stdout == graphml_command(*run).stdout
    said = graphml_command(*run, "-ngl", 1, code=2).stderr
    assert "--gpu-layers: wanted a backend that drives a GPU" in said


def test_values_that_mean_what_is_so_without_an_option() -> None:
    run = ["run", STORIES, "Once", "-n", 3, "--temp", 0, *REFERENCE]
    wanted = graphml_command(*run).stdout
    for words in (["-ngl", -1], ["-ngl", "all"], ["--n-gpu-layers=auto"], ["-c", 0], ["--ctx-size=0"]):
        assert graphml_command(*run, *words).stdout == wanted
    assert "whole number" in graphml_command(*run, "-ngl", "some", code=2).stderr


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
    # Names of backends and files are values of options.
    (["compare", STORIES, "cpu", "reference"], "a backend is named by --backend cpu,reference"),
    (["bisect", STORIES, "cpu,reference"], "a backend is named by --backend cpu,reference"),
    (["bench", STORIES, "reference", "cpu"], "a backend is named by --backend reference"),
    (["chat", STORIES, "cpu"], "a backend is named by --backend cpu"),
    (["profile", STORIES, "cpu", "reference"], "a backend is named by --backend cpu"),
    (["fuzz", "cpu"], "a backend is named by --backend cpu"),
    (["diff", STORIES, STORIES, __file__], "(s) (" + __file__ + "): wanted two models"),
    (["plan", STORIES, STORIES], "wanted one model"),
    (["doctor", STORIES, STORIES], "wanted one model, or none for the machine"),
    (["perplexity", STORIES, "text.txt"], "--file text.txt: cannot be read"),
    (["perplexity", STORIES, "text.txt", "-f", "other.txt"], "--file: wanted one text"),
    (["explain", STORIES, "layers.0.q", "--node", "layers.0.k"], "--node: wanted one node"),
    (["explain", STORIES, "layers.0.qq"], "did you mean layers.0.q or"),
    (["explain", STORIES, "qq-0"], "graphml: NODE: no node is called 'qq-0'; did you mean layers.0.q"),
    (["explain", STORIES, "--node", "qq-0"], "graphml: --node: no node is called 'qq-0'"),
    (["bench", "-p", 4, STORIES], "-m MODEL names the model"),
    (["bench", "nonsense"], "-m MODEL names the model"),
    (["graph", STORIES, "--svg"], "--svg: Graphviz draws it: -f dot | dot -Tsvg"),
    (["tokenize", STORIES, "Hi", "--count"], "--count: a line each"),
    (["quantize", STORIES, "o.gguf", "Q8_0", "--output-tensor-type", "q6_k"], "'^output.weight=TYPE' is the"),
    (["quantize", STORIES, "o.gguf", "Q8_0", "--exclude-weights", "a"], "importance is used of all matrices"),
    (["quantize", STORIES, "o.gguf", "Q8_0", "--override-kv", "a=int:1"], "`graphml gguf set FILE KEY"),
    (["imatrix", STORIES, "-o", "a.gguf", "--output-format", "dat"], "--output-format: the output's ending"),
    (["imatrix", STORIES, "-o", "a.gguf", "--chunk", 2], "--chunk: it begins with the first chunk"),
    (["chat", STORIES, "-p", "Hello"], "-p: `graphml run MODEL"),
    (["embed", STORIES, "x", "--normalize"], "--normalize: embeddings have length 1"),
    (["profile", STORIES, "-o", "x.json"], "got 'x.json'; others are on stdout: --format json > x.json"),
    (["profile", STORIES, "-o", "x.html", "--format", "csv"], "--format csv, --output x.html: wanted html"),
    (["profile", STORIES, "-p", 512], "--prompt-tokens: wanted at most 444 beside 64 tokens"),
    (["profile", STORIES, "-p", 512, "--sequences", 2], "--prompt-tokens: wanted at most 448 beside 64"),
    (["compare", STORIES, "--a", "cpu"], "--a: wanted --backend A,B"),
    (["run", STORIES, "Hi", "--prompt-cache", "s.bin"], "--prompt-cache: `graphml chat` keeps a con"),
    (["run", STORIES, "Hi", "--save=x.json"], "--save: `graphml chat` keeps a conversation: /save FILE"),
    (["run", STORIES, "Hi", "--device", "cuda"], "--device: --backend chooses"),
    (["run", STORIES, "Hi", "-s", "Be brief."], "-s is the seed; the system message is -sys"),
    (["run", STORIES, "Hi", "-o", "out.txt"], "-o: wanted the name of a setting and its value, `-o temperat"),
    (["run", STORIES, "Hi", "-o", "raw", "1"], "-o: wanted the name of a setting and its value"),
    (["run", STORIES, "Hi", "--show-prompt", "--no-display-prompt"], "--no-display-prompt: the prompt is"),
    (["embed", STORIES, "Hi", "--embd-output-format", "xml"], "--embd-output-format: wanted one of json"),
    (["embed", STORIES, "Hi", "--embd-output-format", "raw", "--json"], "wanted no --json and no"),
    (["run", STORIES, "Hi", "-fa", "off"], "-fa: wanted on or auto; attention is always"),
    (["run", STORIES, "Hi", "-ctk", "q9"], "-ctk: wanted one of f16"),
    (["run", STORIES, "Hi", "-ctk", "f16", "-ctk", "f32"], "-ctk: wanted once"),
    (["run", STORIES, "Hi", "-ctk", "f16", "--kv", "f32"], "--kv: wanted once; got"),
    (["run", STORIES, "Hi", "-ctv"], "-ctv: wanted a value"),
    (["tokenize", STORIES, "Hi", "-ctk", "q8_0"], "-ctk: this command keeps no cache"),
    (["run", STORIES, "Hi", "--format", "xml"], "--format: wanted json, or --json-schema"),
    (["run", STORIES, "Hi", "--schema", "name, age integer"], "--json-schema: wanted a JSON schema, or"),
    (["run", STORIES, "Hi", "--schema", "name, name"], "--json-schema: wanted a JSON schema, or fields"),
    (["run", STORIES, "Hi", "--temp", 0, "--temperature", 1], "--temperature: wanted once; got '0'"),
    (["compare", STORIES, "--backend", "cpu", "--backend", "cpu,reference"], "--backend: wanted A,B"),
    (["bench", STORIES, "-ctk", "f16", "--nonsense"], "No such option: --nonsense"),  # it has -ctk
    (["serve", STORIES, "-ctk", "q8_0", "--no-mmap", "--port", "99999"], "graphml: --port: wanted"),
    (["models", "--config", "a", "--config", "b"], "--config: wanted once; got 'a' and 'b'"),
    (["--config", "a", "--config", "b", "models"], "--config: wanted once; got 'a' and 'b'"),
    (["--profile", "a", "models", "--profile", "b"], "--profile: wanted once; got 'a' and 'b'"),
    (["run", STORIES, "Hi", "-n", 9, "-cnv"], "-cnv: `graphml chat` converses"),
    # What is no option of the line is not explained as one.
    (["run", STORIES, "-p", "Hi", "--nonsense", "--", "--device"], "No such option: --nonsense"),
    (["run", STORIES, "Hi", "--nonsense", "--stop", "--device"], "No such option: --nonsense"),
    (["run", STORIES, "Hi", "--stop", "--device", "--temp", "x"], "--temp': wanted a number; got 'x'"),
    (["run", STORIES, "words", "-cnv"], "-cnv: `graphml chat` converses"),  # words: a parameter's name
    (["frobnicate", "--device"], "No such command 'frobnicate'"),
    (["run", STORIES, "Hi", "--logprobs", 3, "--beams", 2, "--device", "x"], "--device: --backend chooses"),
    (["run", STORIES, "-p", "Hi", "-f", "no.txt", "--stop", "--device"], "--file: no.txt"),
    (["embed", STORIES, "x", "--pooling", "rank", "--embd-normalize", 1, *REFERENCE], "rank, which score"),
    (["embed", STORIES, "x", "--query", "x", "--embd-normalize", 1, *REFERENCE], "beside --query"),
    (["embed", STORIES, "x", "--query", "x", "--similarity"], "--similarity: wanted none beside --query"),
    (["embed", STORIES, "x", "--query", "x", "--pooling", "mean"], "--query: wanted no --pooling but rank"),
    (["chat", "--server", "http://x", "--api-key", "@no.key"], "graphml: --api-key: no.key: cannot be read"),
    # Errors of the library name the flag, not its argument.
    (["run", STORIES, "Hi", "--control-vector", "no.gguf:2"], "graphml: --control-vector: wanted a GGUF"),
    (["run", STORIES, "Hi", "--lora-scaled=no:2"], "graphml: --lora-scaled: "),
    (["serve", STORIES, "--rope-scaling", "x"], "graphml: --rope-scaling: wanted one of none,"),
    (["serve", STORIES, "--quant", "q9"], "graphml: --quant: wanted one of fp32, q8, q4; got 'q9'"),
    (["serve", STORIES, "-ctk", "q9"], "graphml: --cache-type-k: wanted one of f16"),
    (["serve", STORIES, "--kv", "q9"], "graphml: --kv: wanted one of f16"),
    (["serve", STORIES, "-ctk", "q8_0,0=f16", "-ctv", "q4_0"], "got 'q8_0,0=f16'"),
    (["run", STORIES, "Hi", "-ctk", "q8_0,0=f16", "-ctv", "q4_0"], "got 'q8_0,0=f16'"),
    (["embed", STORIES, "x", "--pooling", "none", *REFERENCE], "--pooling: "),
    (["embed", STORIES, "x", "--prompt-name", "query", *REFERENCE], "graphml: --prompt-name: "),
    (["embed", STORIES, "x", "--query", "x", "--prompt-name", "query"], "--query: wanted no --prompt-name"),
    (["embed", STORIES, "x", "--pooling", "median", *REFERENCE], "graphml: --pooling: wanted one of"),
    (["run", STORIES, "Hi", "--quant", "q5", *REFERENCE], "graphml: --quant: wanted one of"),
])  # fmt: skip
def test_an_error_says_what_to_type(arguments: list[object], said: str) -> None:
    assert said in " ".join(graphml_command(*arguments, code=2).stderr.split())


@pytest.mark.parametrize(("theirs", "ours"), [
    ("--format json", '--json-schema {"type":"object"}'),
    ("--format=json", '--json-schema {"type":"object"}'),
    ("--schema {}", "--json-schema {}"),
    ("-j {}", "--json-schema {}"),
    ("--num-predict 3 --max-new-tokens=4", "--n-predict 3 --n-predict=4"),
    ("--top_k 3 --max_tokens=4 --stop --top_k", "--top-k 3 --max-tokens=4 --stop --top_k"),
    ("--stream --jinja --no-warmup -- --stream", "-- --stream"),
    ("--stream=no --colour_x", "--stream=no --colour_x"),
    ("-ctk f16 -ctv f32", "--kv f16/f32"),
    ("--cache-type-v=f32", "--kv f16/f32"),
    ("-fa on --raw", "--raw"),
    ("-fa -no-cnv -st", "--raw"),
    ("--no-conversation --no-display-prompt", "--raw"),
    ("-o temperature 0 -o top_k 3", "--temperature 0 --top-k 3"),
    ("--stop --show-prompt --no-display-prompt", "--stop --show-prompt"),  # a value
    ("--stop -fa -- -ctk", "--stop -fa -- -ctk"),  # a value, and words of the prompt
])  # fmt: skip
def test_an_option_of_the_same_meaning_is_done(theirs: str, ours: str) -> None:
    root: Any = typer.main.get_command(app)
    words = in_our_words("run", root.get_command(None, "run"), theirs.split())
    assert words == ours.split()


def test_options_of_other_commands_than_run() -> None:
    root: Any = typer.main.get_command(app)
    for command, theirs, ours in (
        ("chat", "-cnv --verbose -ctk f32", "--kv f32/f16 --stats"),
        ("perplexity", "-ctv f32 -fa auto", "--kv f16/f32"),
        ("perplexity", "--save-all-logits a.kld", "--kl-divergence-base a.kld"),
        ("imatrix", "--no-ppl -ofreq 3", "--save-every 3"),
        ("embed", "--truncate-dim 8", "--dimensions 8"),
        ("bench", "-ctk f32 -fa 1", "-ctk f32"),
        ("compare", "--backends cpu,reference", "--backend cpu,reference"),
        ("tokenize", "--stream", "--stream"),
    ):
        assert in_our_words(command, root.get_command(None, command), theirs.split()) == ours.split()
    run = [STORIES, "--raw", "Once", "-n", 4, "--temp", 0, *REFERENCE]
    wanted = graphml_command("run", *run).stdout
    assert graphml_command("run", *run, "-fa", "on", "-no-cnv", "-ctk", "f16").stdout == wanted
    spoken = [STORIES, "Once", "-n", 4, "-o", "temperature", 0, "--no-conversation", "--no-display-prompt"]
    assert graphml_command("run", *spoken, *REFERENCE).stdout == wanted


def test_fields_are_a_schema() -> None:
    wanted = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "description": "in years, whole"},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    assert json.loads(schema_of_fields("name\nage int: in years, whole\n") or "") == wanted
    assert json.loads(schema_of_fields("a float, b bool,") or "")["properties"] == {
        "a": {"type": "number"}, "b": {"type": "boolean"},
    }  # fmt: skip
    assert [schema_of_fields(text) for text in ("", "name", " {}", '{"a": 1, "b": 2}')] == [None] * 4
    run = ["run", STORIES, "--raw", "Once", "-n", 8, "--temp", 0, *REFERENCE]
    done = graphml_command(*run, "--schema", "name, age int")
    assert done.stdout.lstrip("{ \n").startswith('"name"')
    assert done.stderr == "graphml: cut at 8 tokens (-n)\n"
    assert graphml_command(*run).stderr == ""


def test_timings_are_as_ollamas() -> None:
    done = graphml_command("run", STORIES, "--raw", "Once", "-n", 4, "--temp", 0, "--verbose", *REFERENCE)
    names = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert names == [
        "total duration", "start duration", "load duration", "compile duration", "prompt eval count",
        "prompt eval duration", "prompt eval rate", "eval count", "eval duration", "eval rate",
        "other duration",
    ]  # fmt: skip
    lines = dict(line.split(":") for line in done.stderr.splitlines() if "duration" in line)
    total, *parts = (float(text.strip().removesuffix("s")) for text in lines.values())
    assert sum(parts) == pytest.approx(total, abs=0.01)  # no seconds are in no line
    assert "eval count:           4 token(s)" in done.stderr


def test_a_weight_without_its_ending_is_the_node_that_multiplies_by_it() -> None:
    wanted = graphml_command("explain", STORIES, "--node", "layers.0.q", *REFERENCE).stdout
    for words in (
        [STORIES, "layers.0.q"], [STORIES, "blk.0.attn_q"], ["-m", STORIES, "layers.0.q"],
    ):  # fmt: skip
        assert graphml_command("explain", *words, *REFERENCE).stdout == wanted


def test_what_the_help_shows_as_a_list_is_joined_and_nothing_else() -> None:
    root: Any = typer.main.get_command(app)
    lists = {
        (name, max(param.opts, key=len))
        for name in COMMANDS
        for param in root.get_command(None, name).params
        if "," in (param.metavar or "") and not param.multiple
    }
    assert {option for _, option in lists} == {"--backend", "--targets"}
    assert {("run", "--backend"), ("compare", "--backend"), ("fuzz", "--backend")} <= lists


def test_backends_that_are_given_twice_are_the_two() -> None:
    options = ["--tokens", 2, "--fuse-b", "none", "--format", "json"]
    twice = graphml_command("compare", STORIES, "--backend", "reference", "--backend", "cpu", *options)
    facts = json.loads(twice.stdout)
    assert (facts["a"]["backend"], facts["b"]["backend"]) == ("reference", "cpu")


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
