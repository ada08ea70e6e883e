"""Every flag and variable that llama-server lists is read, or accepted with a line of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from graphml import settings
from graphml.cli import serve as command
from graphml.cli.serve import _path, load_options, server_options
from graphml.cli.terminal.console import Bars
from graphml.errors import UsageError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.server.options.command_line import BY_NAME, PRESETS, Parsed, parsed, with_variables
from tests.looped import looped

LISTED = Path(__file__).parents[1] / "data" / "llama_server_flags.txt"
LINES = [line.split("|") for line in LISTED.read_text().splitlines() if not line.startswith("#")]
VARIABLES = [variable for _, _, variable in LINES if variable.startswith("LLAMA_")]
SWITCHES = {variable for _, count, variable in LINES if count == "0"}


@looped("names", [names for names, _, _ in LINES])
def test_a_flag_of_llama_server_takes_its_values_and_no_more(names: str) -> None:
    (count,) = [int(count) for listed, count, _ in LINES if listed == names]
    for name in names.split():
        given = parsed([name, *["1"] * count, "-s", "7", "file.gguf"])
        assert (given.model, given.values["seed"]) == ("file.gguf", 7)
        assert len(given.values) > 1 or name in given.ignored or name == "--seed" or name == "-s"


@looped("variable", VARIABLES)
def test_a_variable_of_llama_server_is_read_or_told(variable: str) -> None:
    found = with_variables(Parsed(), {variable: "1"})
    assert bool(found.values) != (found.ignored == [variable])
    (names,) = [names for names, _, listed in LINES if listed == variable]
    read = [name for name in names.split() if name in BY_NAME]
    assert bool(found.values) == bool(read)
    if read:
        assert list(found.values) == [BY_NAME[read[0]].into]


def test_flags_count_before_variables() -> None:
    variables = {"LLAMA_ARG_CTX_SIZE": "64", "LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_MODEL": "other.gguf"}
    found = with_variables(parsed(["-c", "128", "mine.gguf"]), variables)
    assert (found.values, found.model) == ({"ctx": 128, "parallel": 3}, "mine.gguf")
    assert with_variables(Parsed(), variables).values["model"] == "other.gguf"
    assert server_options(with_variables(Parsed(), {"LLAMA_API_KEY": "a,b"})).api_keys == ("a", "b")


def test_no_variable_overrules_a_flag_that_says_the_same_in_other_words() -> None:
    for flags, variable in (
        (["--chat-template", "chatml"], "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
        (["--rope-freq-scale", "0.5"], "LLAMA_ARG_ROPE_SCALE"),
        (["--reasoning", "on"], "LLAMA_ARG_THINK_BUDGET"),
        (["-hf", "user/repo"], "LLAMA_ARG_MODEL"),
    ):
        assert with_variables(parsed(flags), {variable: "0"}).values == parsed(flags).values


def test_variables_of_switches_are_on_off_or_negative() -> None:
    found = with_variables(
        Parsed(),
        {"LLAMA_ARG_ENDPOINT_METRICS": "off", "LLAMA_ARG_UI": "disabled", "LLAMA_ARG_CONTEXT_SHIFT": "true",
         "LLAMA_ARG_NO_CACHE_PROMPT": "", "LLAMA_ARG_NO_ENDPOINT_SLOTS": "x"},
    ).values  # fmt: skip
    assert found == {"metrics": False, "page": False, "shift": True, "cache_prompt": False, "slots": False}


@pytest.mark.parametrize(("variable", "text"), [("LLAMA_ARG_PORT", "x"), ("LLAMA_ARG_UI", "maybe")])
def test_a_wrong_value_of_a_variable_names_it(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=variable):
        with_variables(Parsed(), {variable: text})


def test_the_environment_is_read_by_llama_servers_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "81")
    monkeypatch.setenv("LLAMA_API_KEY", "k")
    monkeypatch.setenv("LLAMA_CACHE", "elsewhere")
    found = settings.llama_variables()
    assert (found["LLAMA_ARG_PORT"], found["LLAMA_API_KEY"]) == ("81", "k")
    assert "LLAMA_CACHE" not in found


@looped("name", sorted(PRESETS))
def test_a_preset_is_a_model_that_later_flags_change(name: str) -> None:
    given = parsed([name, "--port", "5"])
    assert given.values["port"] == 5
    assert ("hf" in given.values) == (name != "--spec-default")
    assert not given.ignored
    server_options(given)
    load_options(given)


def test_flags_that_print_serve_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "load_model", None)
    for flag, said in (("--version", "graphml "), ("-cl", "graphml models"), ("--list-devices", "doctor"),
                       ("--completion-bash", "--show-completion"), ("--help", "Usage")):  # fmt: skip
        context = typer.Context(typer.main.get_command(_app()), allow_extra_args=True)
        context.args = [flag]
        command.serve(context)
        assert said in capsys.readouterr().out


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command()(lambda: None)
    return app


def test_flags_that_were_passed_over_are_heeded(tmp_path: Path) -> None:
    line = [
        "--embd-normalize",
        "-1",
        "--reasoning-effort",
        "high",
        "--kv-unified-per-slot",
        "96",
        "-c",
        "512",
    ]
    given = parsed(line)
    options = server_options(given)
    assert (options.embd_normalize, options.n_ctx) == (-1, 96)
    assert options.template_variables == {"reasoning_effort": "high"}
    vector = tmp_path / "a.gguf"
    vector.touch()
    given = parsed(["--control-vector", str(vector), "--control-vector-layer-range", "2", "5"])
    assert load_options(given).control_layers == (2, 5)
    assert load_options(parsed(["-hfd", "user/small:Q8_0"])).draft_model == "user/small:Q8_0"
    assert server_options(parsed(["--reasoning-budget", "0"])).reasoning == "off"
    limited = parsed(["--reasoning-budget", "64"])
    assert server_options(limited).reasoning == "auto"
    assert limited.ignored == []


def test_weights_and_caches_are_converted_as_run_converts_them() -> None:
    options = load_options(parsed(["--quant", "q8", "--kv", "q8_0/q4_0"]))
    assert (options.quant, options.kv) == ("q8", "q8_0/q4_0")
    with pytest.raises(UsageError, match="--kv: wanted either"):
        load_options(parsed(["--kv", "f32", "-ctk", "f32"]))


@pytest.mark.parametrize(
    "other",
    [
        "https://example.com/a.gguf",
        "https://huggingface.co@example.com/user/repo/resolve/main/a.gguf",
        "https://huggingface.co/user/repo/resolve/0123abc/a.gguf",  # not what is downloaded
    ],
)
def test_a_models_address_is_one_of_the_hub(other: str) -> None:
    with pytest.raises(UsageError, match=f"{re.escape(other)}"), Bars() as bars:
        _path(parsed(["--model-url", other]), LoadOptions(), bars)
