"""The INI file of models: llama-server's format, and what cannot be meant is refused with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import graphml
from graphml.cli.serve import model_sources, server_options
from graphml.errors import UsageError
from graphml.server.options.command_line import BY_NAME, WITH_VALUE, parsed
from graphml.server.options.model_presets import OF_SERVER, loaded_on_startup, preset_command, read_presets
from graphml.server.options.model_sources import named_models
from tests import tiny_model
from tests.stories import STORIES

FILE = """version = 1

; for all
[*]
c = 8192
parallel = 3
load-on-startup = true

[user/MY-MODEL-GGUF:Q8_0]
chat-template = chatml   ; behind a value
LLAMA_ARG_N_PARALLEL = 2
temp = 0.1
temp = 0.5
no-cont-batching = true
[custom]\r
model = /models/custom.gguf
chat-template-file = own.jinja
load-on-startup = off
ignore-eos = 1
no-slots = 0
stop-timeout = 5
dedup-cache-models = 1
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "models.ini"
    path.write_bytes(text.encode())
    return path


def test_a_section_states_the_flags_of_a_model(tmp_path: Path) -> None:
    presets = read_presets(_file(tmp_path, FILE))
    assert list(presets) == ["*", "user/MY-MODEL-GGUF:Q8_0", "custom"]
    first = preset_command(parsed(["--port", "1"]), presets, "user/MY-MODEL-GGUF:Q8_0")
    assert first.values == {
        "port": 1, "template": "chatml", "parallel": 2, "temperature": 0.5, "ctx": 8192,
    }  # fmt: skip
    assert first.ignored == ["--no-cont-batching"]
    custom = preset_command(parsed([]), presets, "custom")
    assert custom.ignored == ["stop-timeout", "dedup-cache-models"]
    assert custom.values == {
        "model": "/models/custom.gguf", "template_file": "own.jinja", "ignore_eos": True, "slots": True,
        "ctx": 8192, "parallel": 3,
    }  # fmt: skip
    assert preset_command(parsed([]), presets, "another").values == {"ctx": 8192, "parallel": 3}


def test_the_command_line_counts_most(tmp_path: Path) -> None:
    presets = read_presets(_file(tmp_path, FILE))
    line = parsed(["-c", "64", "--chat-template", "llama2"])
    assert preset_command(line, presets, "custom").values["ctx"] == 64
    assert "template_file" not in preset_command(line, presets, "custom").values
    assert line.values == {"ctx": 64, "template": "llama2"}


def test_a_section_counts_more_than_that_of_all_also_by_another_flag_of_the_matter(tmp_path: Path) -> None:
    presets = read_presets(_file(tmp_path, "[*]\nchat-template = chatml\n[a]\nchat-template-file = x\n"))
    assert preset_command(parsed([]), presets, "a").values == {"template_file": "x"}
    assert preset_command(parsed([]), presets, "b").values == {"template": "chatml"}


def test_the_flags_of_the_server_are_flags() -> None:
    assert not OF_SERVER - BY_NAME.keys() - WITH_VALUE


def test_which_models_are_loaded_at_the_start(tmp_path: Path) -> None:
    presets = read_presets(_file(tmp_path, FILE))
    names = ("user/MY-MODEL-GGUF:Q8_0", "custom", "another")
    assert [loaded_on_startup(presets, name) for name in names] == [True, False, True]
    assert not loaded_on_startup({}, "custom")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("[a]\nnothing\n", 2, "wanted [MODEL], KEY = VALUE or a comment"),
        ("\n[a\n", 2, "wanted [MODEL]"),
        ("[]\n", 1, "wanted [MODEL]"),
        ("c = 1\n", 1, "wanted a section before it"),
        ("version = 2\n", 1, "wanted a section before it, or version = 1"),
        ("[a]\n[b]\n[a]\n", 3, "wanted each section once"),
        ("[a]\nctx-sise = 1\n", 2, "no such option"),
        ("[a]\nport = 1\n", 2, "--port is the server's"),
        ("[a]\nmodels-max = 2\n", 2, "--models-max is the server's"),
        ("[a]\nLLAMA_API_KEY = x\n", 2, "is the server's"),
        ("[a]\nignore-eos = perhaps\n", 2, "wanted on, enabled, true, 1"),
        ("[a]\nload-on-startup = 2\n", 2, "wanted on, enabled, true, 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, what: str
) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_presets(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert what in str(caught.value)


def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path) -> None:
    path = _file(tmp_path, "[a]\nc = many\n")
    with pytest.raises(UsageError, match=r"models\.ini:2: c: .*many"):
        preset_command(parsed([]), read_presets(path), "a")
    with pytest.raises(UsageError, match=r"none\.ini: cannot be read"):
        read_presets(tmp_path / "none.ini")


def test_models_of_a_folder_and_of_sections_have_their_own_flags(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("a", "b"):
        tiny_model.write(tmp_path / "models" / f"{name}.gguf", n_ctx=128)
    file = tmp_path / "models.ini"
    file.write_text(f"[*]\nctx-size = 64\n[a]\ntop-k = 3\n[c]\nload-on-startup = on\nmodel = {STORIES}\n")
    flags = ["--models-dir", str(tmp_path / "models"), "--models-preset", str(file), "--temp", "0.5"]
    command = parsed([*flags, "-np", "1", "--alias", "first", "--lora", "x.gguf"])
    plain = parsed([*flags, "--models-max", "2", "--no-models-autoload"])
    assert (server_options(plain).models_max, server_options(plain).models_autoload) == (2, False)
    sources = model_sources(command, server_options(command), None)
    assert set(sources) == {"a", "b", "c"}
    options = {name: source.options for name, source in sources.items()}
    assert {name: x.params.top_k for name, x in options.items()} == {"a": 3, "b": 40, "c": 40}
    assert {(x.params.temperature, x.n_ctx, x.aliases, x.loras) for x in options.values()} == {
        (0.5, 64, (), ())
    }
    assert [name for name, source in sources.items() if source.on_startup] == ["c"]
    assert sources["c"].find() == STORIES
    path = sources["a"].find()
    assert path == tmp_path / "models" / "a.gguf"
    assert sources["a"].size(path) > 64 * 64
    with sources["a"].open(path) as model:
        first = replace(command, model=str(path))
        with_first = model_sources(first, server_options(first), model)
        assert set(with_first) == {"first", "a", "b", "c"}
        assert with_first["first"].find() == path


def test_further_models_of_a_command_line_are_loaded_at_the_start(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        tiny_model.write(tmp_path / f"{name}.gguf", n_ctx=128)
    first, others = tmp_path / "a.gguf", [str(tmp_path / "b.gguf"), str(tmp_path / "c.gguf")]
    command = parsed([str(first), *others, "-np", "1", "--alias", "first", "-c", "64"])
    options = server_options(command)
    assert (options.routes, options.models_max) == (True, 4)
    assert server_options(parsed(["m"] * 6)).models_max == 6
    with graphml.load(first, "cpu", n_batch=64) as model:
        sources = model_sources(command, options, model)
        assert {name: source.on_startup for name, source in sources.items()} == {
            "first": False, "b": True, "c": True,
        }  # fmt: skip
        assert (sources["b"].find(), sources["b"].options.n_ctx) == (tmp_path / "b.gguf", 64)
        few = replace(options, models_max=2)
        assert not any(source.on_startup for source in model_sources(command, few, model).values())
        wrong = parsed([str(first), str(tmp_path / "none.gguf")])
        with pytest.raises(UsageError, match=r"none\.gguf"):
            model_sources(wrong, server_options(wrong), model)
        (tmp_path / "models").mkdir()
        tiny_model.write(tmp_path / "models" / "b.gguf", n_ctx=128)
        both = parsed([str(first), others[0], "--models-dir", str(tmp_path / "models")])
        with pytest.raises(UsageError, match="--models-dir has another model of the name 'b'"):
            model_sources(both, server_options(both), model)


@pytest.mark.parametrize(
    ("models", "said"),
    [(["x/a.gguf", "y/a.gguf"], "'a.gguf' and 'x/a.gguf' have the name 'a'"),
     (["x/b.gguf", "b"], "'x/b.gguf' and 'b' have the name 'b'"),
     (["x/two words.gguf"], "wanted a name of letters, digits")],
    ids=str,
)  # fmt: skip
def test_names_of_further_models_must_tell_them_apart(models: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        named_models("a.gguf", models)


def test_names_of_further_models_are_the_ends_of_what_was_typed() -> None:
    typed = [
        "x/b.gguf",
        "smollm2",
        "hf.co/user/repo:Q8_0",
        "folder/",
        "https://huggingface.co/u/r/resolve/main/d.gguf",
    ]
    assert list(named_models("a.gguf", typed)) == ["b", "smollm2", "repo-Q8_0", "folder", "d"]


def test_a_section_without_a_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "models.ini"
    file.write_text("[nothing]\ntop-k = 3\n")
    command = parsed(["--models-preset", str(file)])
    with pytest.raises(UsageError, match=r"models\.ini: \[nothing\]: wanted a model"):
        model_sources(command, server_options(command), None)
