"""The commands: what they print where, on a tiny model and the stories checkpoint."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

import graphml
from graphml.cli.main import COMMANDS, app
from graphml.loading import fetch
from graphml.weights import open_model
from tests import tiny_model
from tests.looped import looped
from tests.stories import STORIES

REFERENCE = ["--backend", "reference"]
GREEDY = [*REFERENCE, "--temp", 0]


def graphml_command(*arguments: object, stdin: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # else it would look like exit code 1
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_version_and_help() -> None:
    assert graphml_command("--version").stdout == f"graphml {graphml.__version__}\n"
    help_text = graphml_command("--help").stdout
    for name in COMMANDS:
        assert name in help_text
        assert "Usage: graphml" in graphml_command(name, "--help").stdout
    assert "No such command 'walk'" in graphml_command("walk", code=2).output
    assert "No such command 'pulll'. Did you mean 'pull'?" in graphml_command("pulll", code=2).output


def test_options_have_the_names_of_other_programs() -> None:
    for options in (["--ctx-size", 64, "-n", 1], ["--temperature", 0, "-n", 1], ["--n-predict", 1]):
        assert len(graphml_command("run", "stories260k", "One", "--raw", *REFERENCE, *options).stdout) > 1


@looped("name", COMMANDS)
def test_a_summary_is_what_the_command_says_of_itself(name: str) -> None:
    """It is read from the file, which `--help` does not import."""
    command: Any = typer.main.get_command(app)
    whole = command.get_command(None, name)
    with command._listed():
        short = command.get_command(None, name)
    assert inspect.cleandoc(short.help) == inspect.cleandoc(whole.help)
    assert not [one for one in short.params if one.name != "help"]


def test_completion_can_be_shown_and_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = graphml_command("--show-completion", "bash").stdout
    assert "_GRAPHML_COMPLETE=complete_bash" in shown
    assert "complete -o default -F _graphml_completion graphml" in shown
    graphml_command("--install-completion", "bash")
    assert "_GRAPHML_COMPLETE" in (tmp_path / ".bash_completions" / "graphml.sh").read_text()
    assert "graphml.sh" in (tmp_path / ".bashrc").read_text()


def test_run_continues_a_text_where_there_is_no_template() -> None:
    done = graphml_command("run", STORIES, "-p", "", "-n", 20, *GREEDY)
    assert done.stdout.startswith("Once upon a time, there was a little girl named Lily.")
    assert done.stdout.endswith("\n")
    assert done.stderr == ""


def test_run_and_info_take_another_representation_of_the_weights() -> None:
    begin = "Once upon a time, there was a little girl named Lily."
    for quant in ("q8", "fp32"):
        done = graphml_command("run", STORIES, "-p", "", "-n", 20, "--quant", quant, *GREEDY)
        assert done.stdout.startswith(begin)
        assert done.stderr == ""
    found = json.loads(graphml_command("info", STORIES, "--quant", "q8", "--json").stdout)
    changed = [one for one in found["tensors"] if one["stays_because"] is None]
    assert {one["becomes"] for one in changed} == {"q8_0"}
    assert found["memory"]["copied"] == sum(one["bytes_in_memory"] for one in changed) > 0
    shown = graphml_command("info", STORIES, "--quant", "q8").stdout
    assert "-> q8_0" in shown
    assert "stays: is a vector" in shown
    wrong = graphml_command("run", STORIES, "-p", "", "--quant", "q5", code=2)
    assert "quant: wanted one of fp32, q8, q4; got 'q5'" in wrong.stderr


def test_run_uses_the_template_unless_raw(path: Path) -> None:
    done = graphml_command("run", path, "-p", "hello", "-n", 3, "--json", *GREEDY)
    found = json.loads(done.stdout)
    assert found["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    with graphml.load(path, backend="reference") as model:
        ids = model.encode(found["prompt"], parse_special=True)
        session = model.session()
        tokens = list(session.generate(ids, max_tokens=3))
    assert found["prompt_ids"] == ids
    assert found["ids"] == [token.id for token in tokens]
    assert found["text"] == "".join(token.piece for token in tokens)
    assert found["stop_reason"] == "length"
    assert (found["stats"]["n_prompt"], found["stats"]["n_gen"]) == (len(ids), 3)
    raw = json.loads(
        graphml_command("run", path, "-p", "hello", "-n", 3, "--json", "--raw", *REFERENCE).stdout
    )
    assert raw["prompt"] == "hello"


def test_run_reads_stdin_and_shows_the_prompt(path: Path) -> None:
    done = graphml_command(
        "run", path, "-n", 0, "--show-prompt", "--system", "be kind", *REFERENCE, stdin="hi"
    )
    assert done.stdout == (
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\n"
    )


def test_run_repeats_with_the_seed_that_it_tells(path: Path) -> None:
    options = ["run", path, "-p", "hello", "-n", 12, "--temp", 1.5, "--top-k", 200, "--json", *REFERENCE]
    first = json.loads(graphml_command(*options).stdout)
    again = json.loads(graphml_command(*options, "--seed", first["seed"]).stdout)
    other = json.loads(graphml_command(*options, "--seed", first["seed"] + 1).stdout)
    assert first["ids"] == again["ids"] != other["ids"]


def test_run_takes_a_template_and_stops(path: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("Q: {{ messages[0]['content'] }} A:", encoding="utf-8")
    options = ["run", path, "-p", "hello", "--template", tmp_path / "own.jinja", "--json", *GREEDY]
    found = json.loads(graphml_command(*options, "-n", 5).stdout)
    assert found["prompt"] == "Q: hello A:"
    stopped = json.loads(graphml_command(*options, "-n", 5, "--stop", found["text"][0]).stdout)
    assert stopped["stop_reason"] == "stop"
    assert stopped["text"] == ""


def test_a_template_is_a_text_a_name_or_a_file(path: Path, tmp_path: Path) -> None:
    text = "Q: {{ messages[0]['content'] }} A:"
    (tmp_path / "own.jinja").write_text(text, encoding="utf-8")
    for template, prompt in (
        (text, "Q: hello A:"),
        (tmp_path / "own.jinja", "Q: hello A:"),
        ("default", "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
    ):
        options = ["-p", "hello", "-n", 1, "--json", "--chat-template", template, *GREEDY]
        assert json.loads(graphml_command("run", path, *options).stdout)["prompt"] == prompt
        assert graphml_command("chat", path, *options[2:4], *options[5:], stdin="hello").stdout
    for command in (["run", path, "-p", "hello"], ["chat", path]):
        for wrong, said in (
            ("nonsense", "--chat-template: wanted Jinja text, or a name"),
            ("{% for", "--chat-template: chat template 'default'"),
            ("none.jinja", "--chat-template: none.jinja: no such file"),
        ):
            assert said in graphml_command(*command, "--chat-template", wrong, *REFERENCE, code=2).stderr


def test_a_full_context_is_told(path: Path) -> None:
    done = graphml_command("run", path, "-p", "hello", "-c", 32, "-n", -1, "--raw", *REFERENCE)
    assert "the context of 32 tokens is full" in done.stderr


def test_an_answer_that_is_cut_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["run", path, "-p", "hello", "--raw", "-c", 32, *GREEDY]
    monkeypatch.setattr(typer.testing._NamedTextIOWrapper, "isatty", lambda stream: True)
    assert "cut at 3 tokens (-n)" in graphml_command(*command, "-n", 3).stderr
    unlimited = graphml_command(*command).stderr
    assert "cut at" not in unlimited
    assert "the context of 32 tokens is full" in unlimited


OF_THE_MODEL = ("no chat template", "unknown kind of model file")
"""What is wrong with a file, and not with how the command was called."""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nothing.gguf", "-p", "x"], "model 'nothing.gguf': no such file"),
        (["run", STORIES, "-p", "x", "--backend", "abacus"], "no backend 'abacus'"),
        (["run", STORIES, "-p", "x", "-c", 1000, *REFERENCE], "--ctx-size: wanted 1 to 512"),
        (["run", STORIES, "-p", "x", "--repeat-penalty", 0, *REFERENCE], "--repeat-penalty: wanted"),
        (
            ["run", STORIES, "-p", "x", "--system", "s", *REFERENCE],
            "--system: wanted a model with a chat template",
        ),
        (["run", STORIES, "-p", "x", "-hf", "a/b"], "prompt: wanted one, got"),
        (["chat", STORIES, *REFERENCE], "no chat template"),
        (["info", __file__], "unknown kind of model file"),
        (["plan", STORIES, "-c", 1000, *REFERENCE], "--ctx: wanted 1 to 512"),
        (["pull", "smolm2"], "did you mean smollm2"),
        (["perplexity", STORIES, "-f", "nothing.txt", *REFERENCE], "--file nothing.txt: cannot be read"),
        (["perplexity", STORIES, "-f", STORIES, *REFERENCE], "cannot be read as UTF-8"),
        (
            ["perplexity", STORIES, "-f", __file__, "-c", 1000, *REFERENCE],
            "--ctx-size: wanted 1 to 512",
        ),
        (["perplexity", STORIES, "-f", __file__, "--chunks", 0, *REFERENCE], "--chunks: wanted at least 1"),
    ],
    ids=lambda value: " ".join(map(str, value[:1])) if isinstance(value, list) else "",
)
def test_errors_are_one_line(arguments: list[object], says: str) -> None:
    done = graphml_command(*arguments, code=1 if says in OF_THE_MODEL else 2)
    assert done.stdout == ""
    assert done.stderr.startswith("graphml: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_DEBUG", "1")
    result = CliRunner().invoke(app, ["run", "nothing.gguf", "-p", "x"])
    assert isinstance(result.exception, graphml.UsageError)


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_THREADS", "many")
    assert "GRAPHML_THREADS: wanted a whole number" in graphml_command("doctor", code=2).stderr


def test_chat_talks_line_by_line(path: Path) -> None:
    script = "hello\n/history\n\n/reset\n/history\n/nonsense\nworld\n/exit\nnever\n"
    done = graphml_command("chat", path, "-n", 3, "--system", "be kind", *GREEDY, stdin=script, code=1)
    with graphml.load(path, backend="reference") as model:
        chat = model.chat(system="be kind", max_tokens=3)
        answers = []
        for text in ("hello", "world"):
            chat.reset()
            chat.add_user(text)
            answers.append(chat.respond())
    assert done.stdout == (
        f"{answers[0]}\nsystem: be kind\nuser: hello\nassistant: {answers[0]}\n"
        f"system: be kind\n{answers[1]}\n"
    )
    assert "unknown command /nonsense" in done.stderr


def test_chat_goes_on_after_a_message_too_long_and_ends_with_1(path: Path) -> None:
    script = "hello " * 30 + "\nhi\n/history\n"
    done = graphml_command("chat", path, "-n", 2, "-c", 40, *REFERENCE, stdin=script, code=1)
    assert "the message has 59 tokens; the context holds 40" in done.stderr
    assert "--ctx" in done.stderr
    assert "is full" not in done.stderr
    assert done.stderr.count("graphml:") == 1
    assert "user: hi\n" in done.stdout
    assert "hello" not in done.stdout


def test_info_tells_metadata_tensors_and_mix(path: Path) -> None:
    text = graphml_command("info", path).stdout
    assert "llama.block_count: u32 = 2" in text
    assert "tokenizer.ggml.tokens: string[268]" in text
    assert "  blk.{0-1}.ffn_down.weight " in text
    assert "blk.1.ffn_down.weight" not in text
    each = graphml_command("info", path, "--tensors").stdout
    assert "  blk.1.ffn_down.weight " in each
    grouped = [line for line in text.splitlines() if line.endswith("  x2")]
    assert len(each.splitlines()) == len(text.splitlines()) + len(grouped)
    assert len(grouped) > 5
    found = json.loads(graphml_command("info", path, "--json").stdout)
    assert found["metadata"]["llama.block_count"] == {"type": "u32", "value": 2}
    assert found["metadata"]["tokenizer.ggml.merges"]["value"] == tiny_model.MERGES
    assert found["metadata"]["tokenizer.ggml.tokens"]["count"] == 268
    (row,) = found["quantisation"]
    assert row == {
        "dtype": "f32",
        "tensors": len(found["tensors"]),
        "elements": found["parameters"],
        "bytes": 4 * found["parameters"],
        "bits_per_weight": 32.0,
    }
    down = next(one for one in found["tensors"] if one["name"] == "blk.0.ffn_down.weight")
    assert (down["shape"], down["bytes"]) == ([tiny_model.WIDTH, tiny_model.HIDDEN], 4 * 32 * 64)


def test_pull_prints_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path))
    known = fetch.MODELS["smollm2"]
    target = tmp_path / "models" / known.file_name
    target.parent.mkdir()
    with target.open("wb") as file:
        file.truncate(known.n_bytes)
    for name in (["smollm2"], []):
        assert graphml_command("pull", *name).stdout == f"{target}\n"
    assert graphml_command("pull", target).stdout == f"{target}\n"


def test_hub_models_are_fetched(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch_hub(reference: str, progress: object = None, offline: bool | None = None) -> Path:
        asked.append(reference)
        return path

    monkeypatch.setattr(fetch, "fetch_hub", fetch_hub)
    monkeypatch.setattr(fetch, "open_hub_header", lambda *given, **named: open_model(fetch_hub(*given)))
    assert graphml_command("pull", "-hf", "user/repo:Q4_0").stdout == f"{path}\n"
    found = json.loads(
        graphml_command("run", "-hf", "user/repo", "-p", "x", "-n", 1, "--json", *REFERENCE).stdout
    )
    assert found["model"] == str(path)
    assert "llama.block_count" in graphml_command("info", "--hf", "user/repo").stdout
    assert asked == ["user/repo:Q4_0", "user/repo", "user/repo"]


def test_perplexity_of_a_text(tmp_path: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time, there was a little girl named Lily. " * 20, encoding="utf-8")
    options = ["perplexity", STORIES, "-f", text, "-c", 48, "--chunks", 3, *REFERENCE]
    done = graphml_command(*options)
    found = json.loads(graphml_command(*options, "--json").stdout)
    assert done.stdout == f"{found['perplexity']:.4f}\n"
    assert (found["chunks"], found["n_ctx"], found["scored"]) == (3, 48, 3 * 23)
    assert 1 < found["perplexity"] < 5
    assert found["error"] > 0


def answer(path: Path, *options: object) -> Any:
    greedy = REFERENCE if "--temp" in options else GREEDY
    return json.loads(
        graphml_command("run", path, "-p", "hello", "-n", 3, "--raw", "--json", *greedy, *options).stdout
    )


def test_run_forbids_tokens_and_stops_at_tokens(path: Path) -> None:
    first, second, *_ = answer(path)["ids"]
    assert answer(path, "--logit-bias", f"{first}-inf")["ids"][0] != first
    assert answer(path, "--logit-bias", f"{second}+100")["ids"][0] == second
    stopped = answer(path, "--stop-token", first, "--stop-token", second)
    assert (stopped["text"], stopped["stop_reason"]) == ("", "stop")


def test_the_fewest_tokens_that_filters_leave_can_be_said(path: Path) -> None:
    few = ("--temp", 100, "--top-p", 0, "--seed")
    many = ("--min-keep", 200, *few)
    assert answer(path, *few, 1)["ids"] == answer(path, *few, 2)["ids"]
    assert answer(path, *many, 1)["ids"] != answer(path, *many, 2)["ids"]


def test_variables_of_the_template_are_given_as_json(path: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{{ tone }} {{ messages[-1]['content'] }}:", encoding="utf-8")
    more = ["--template", own, "--chat-template-kwargs", '{"tone": "kindly"}', "-n", 1, *GREEDY]
    assert graphml_command("run", path, "-p", "hi", "--show-prompt", *more).stdout.startswith("kindly hi:")
    text = ["--chat-template", own.read_text(encoding="utf-8"), *more[2:]]
    assert graphml_command("run", path, "-p", "hi", "--show-prompt", *text).stdout.startswith("kindly hi:")
    said = graphml_command("chat", path, *more, stdin="hi")
    assert said.stdout != graphml_command("chat", path, *more[:2], *more[4:], stdin="hi").stdout


@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=["chat", "raw"])
def test_values_of_a_run_are_written(path: Path, tmp_path: Path, raw: list[str]) -> None:
    file = tmp_path / "values.npz"
    wanted = ["--capture", "layers.*.attention", "--capture", "layers.0.q", "--captured", file]
    graphml_command("run", path, "-p", "hello world", "-n", 3, *raw, *wanted, *REFERENCE)
    with np.load(file) as found, graphml.load(path, "reference") as model:
        names = {name.partition(".")[2] for name in found}
        assert names == {"layers.0.attention", "layers.1.attention", "layers.0.q"}
        if raw:
            session = model.session(capture="layers.1.attention")
            session.eval(model.encode("hello world", parse_special=True))
            assert np.array_equal(found["0.layers.1.attention"], session.captured["layers.1.attention"])
        assert len(found["1.layers.1.attention"]) == 1


def test_similarity_prints_the_cosine_between_each_two_texts() -> None:
    texts, options = ["One day", "Two " * 40], ["--similarity", *REFERENCE]
    report = json.loads(graphml_command("embed", "stories260k", *texts, "--json", *options).stdout)
    rows = np.array(report["embeddings"])
    np.testing.assert_allclose(report["similarity"], rows @ rows.T, atol=1e-6)
    for norm in ((), ("--embd-normalize", 0)):
        lines = graphml_command("embed", "stories260k", *texts, *norm, *options).stdout.splitlines()
        assert [line.split()[:2] for line in lines] == [
            [f"{x:.4f}" for x in row] for row in report["similarity"]
        ]
        assert lines[0].endswith("  One day")
        assert lines[1].endswith(" Two [...]")
    (line, *_) = graphml_command("embed", "stories260k", "あ" * 90, "b", *options).stdout.splitlines()
    assert line.endswith("あああ [...]")


def test_texts_need_no_model_before_them() -> None:
    texts, options = ["a cat on a mat", "two dogs"], ["-m", "stories260k", *REFERENCE]
    rows = graphml_command("embed", "stories260k", *texts, *REFERENCE).stdout
    assert graphml_command("embed", *texts, *options).stdout == rows
    assert rows.count("\n") == 2
    said = graphml_command("rerank", "stories260k", "what is a cat", *texts, *REFERENCE, code=1).stderr
    assert "rank wants a classifier" in said
    assert graphml_command("rerank", "what is a cat", *texts, *options, code=1).stderr == said


@pytest.mark.parametrize("command", ["embed", "rerank"])
def test_a_word_that_is_no_model_is_not_taken_for_a_text(command: str) -> None:
    said = graphml_command(command, "bge-small", "what is a cat", "a cat", *REFERENCE, code=2).stderr
    assert "model 'bge-small': no such file" in said


def test_an_unknown_option_names_only_those_that_are_like_it() -> None:
    said = graphml_command("embed", "stories260k", "x", "--stritly", code=2).output
    assert "(Possible options: --strict)" in said
    assert "Possible" not in graphml_command("rerank", "stories260k", "--similarity", code=2).output


def test_texts_to_embed_stand_behind_the_model() -> None:
    options = ["--pooling", "mean", *REFERENCE]
    behind = graphml_command("embed", "stories260k", "One day", "Two", *options).stdout
    assert behind == graphml_command("embed", "stories260k", "-p", "One day", "-p", "Two", *options).stdout
    assert len(behind.splitlines()) == 2


def test_an_answer_that_is_empty_is_said_to_be(path: Path) -> None:
    first, second, *_ = answer(path)["ids"]
    run = ["run", path, "-p", "hello", "--raw", *GREEDY]
    said = graphml_command(*run, "-n", 3, "--stop-token", first, "--stop-token", second).stderr
    assert "the answer is empty: the first token that the model chose ends it" in said
    assert "is empty" not in graphml_command(*run, "-n", 1).stderr
    assert "is empty" not in graphml_command(*run, "-n", 0).stderr


def test_info_begins_with_what_most_people_look_for(path: Path) -> None:
    first, second = graphml_command("info", path).stdout.splitlines()[1:3]
    assert first == "  architecture llama, context 160 tokens, 2 layers, width 32"
    assert second == "  vocabulary 268 tokens, a chat template"


def test_a_single_word_is_not_embedded_and_the_error_says_how_it_is() -> None:
    assert "'hullo' is taken for MODEL; a text that is one word is `-p hullo`" in (
        graphml_command("embed", "hullo", stdin="", code=2).stderr
    )
