"""The INI file of models: llama-server's format, and what cannot be meant is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphml.errors import UsageError
from graphml.server.options.command_line import BY_NAME, WITH_VALUE, parsed
from graphml.server.options.model_presets import OF_SERVER, loaded_on_startup, preset_command, read_presets

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
    custom = preset_command(parsed([]), presets, "custom").values
    assert custom == {
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
