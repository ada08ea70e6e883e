"""A prompt as people type it: behind the model, without one, from files and stdin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphml.cli.options.options import Opening
from graphml.cli.options.prompts import PromptOptions, model_and_prompt
from graphml.errors import UsageError


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.gguf").touch()
    Path("a.txt").write_text("first\nlines\n")
    Path("b.txt").write_text("second")


class Stdin:
    """Standard input with a text, or a terminal."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def fileno(self) -> int:
        raise OSError("a text in memory")

    def isatty(self) -> bool:
        return self.text is None

    def read(self, size: int = -1) -> str:
        assert self.text is not None, "a terminal was read"
        return self.text


def parsed(*words: str, stdin: str | None = None, opening: Opening | None = None, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", Stdin(stdin))
        return model_and_prompt(words, PromptOptions(**options), opening or Opening())


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [
        (["Tell me a joke"], None, "Tell me a joke"),
        (["Tell", "me", "a", "joke"], None, "Tell me a joke"),
        (["Hello"], None, "Hello"),
        (["smollm2", "Tell me a joke"], "smollm2", "Tell me a joke"),
        (["here.gguf", "Hi", "there"], "here.gguf", "Hi there"),
        (["user/repo:Q8_0", "Hi"], "user/repo:Q8_0", "Hi"),
        (["hf.co/user/repo", "Hi"], "hf.co/user/repo", "Hi"),
        (["https://hf.co/user/repo", "Hi"], "https://hf.co/user/repo", "Hi"),
        # What was meant as a model and is none has to become an error, not a prompt.
        (["./missing", "Hi"], "./missing", "Hi"),
        (["missing.gguf", "Hi"], "missing.gguf", "Hi"),
        (["smolm2", "Hi"], "smolm2", "Hi"),
        (["SmolLM2", "Hi"], "SmolLM2", "Hi"),
        (["and/or is a conjunction"], None, "and/or is a conjunction"),
        (["km/h to m/s"], None, "km/h to m/s"),
        (["and/or: which is it?"], None, "and/or: which is it?"),
    ],
)
def test_the_first_word_is_a_model_or_the_prompt(words: list[str], model: str | None, prompt: str) -> None:
    assert parsed(*words) == (model, prompt)


def test_a_model_by_option_leaves_all_words_to_the_prompt() -> None:
    assert parsed("smollm2", "is", "small", opening=Opening(named="here.gguf")) == (None, "smollm2 is small")
    assert parsed("smollm2", opening=Opening(hf="a/b")) == (None, "smollm2")


def test_the_sources_of_a_prompt_follow_one_another() -> None:
    assert parsed("here.gguf", stdin="piped\n\n") == ("here.gguf", "piped\n")  # one line end is the shell's
    assert parsed("here.gguf", "-", stdin="piped\n") == ("here.gguf", "piped")
    assert parsed("-", stdin="piped") == (None, "piped")
    assert parsed(files=[Path("a.txt")]) == (None, "first\nlines")
    assert parsed("Sum up:", files=[Path("a.txt"), Path("b.txt")]) == (
        None,
        "Sum up:\n\nfirst\nlines\n\nsecond",
    )
    assert parsed(prompt="Sum up:", files=[Path("-")], stdin="piped\n") == (None, "Sum up:\n\npiped")
    assert parsed(prompt="") == (None, "")


def test_piped_text_is_before_the_prompt_unless_its_place_is_named() -> None:
    assert parsed("here.gguf", "Sum up", stdin="piped\n") == ("here.gguf", "piped\n\nSum up")
    assert parsed(prompt="Sum up", stdin="piped\n") == (None, "piped\n\nSum up")
    assert parsed("Sum up", files=[Path("b.txt")], stdin="piped") == (None, "piped\n\nSum up\n\nsecond")
    assert parsed(files=[Path("b.txt")], stdin="piped") == (None, "piped\n\nsecond")
    assert parsed("Sum up", files=[Path("b.txt"), Path("-")], stdin="piped") == (
        None,
        "Sum up\n\nsecond\n\npiped",
    )
    assert parsed(prompt="", stdin="piped") == (None, "piped")
    for nothing in ("", "\n", " \n\n"):
        assert parsed("Sum up", stdin=nothing) == (None, "Sum up")


def test_a_prompt_that_is_missing_or_twice_there_is_an_error() -> None:
    for stdin in (None, "", "\n"):
        with pytest.raises(UsageError, match="prompt: wanted"):
            parsed("here.gguf", stdin=stdin)
    with pytest.raises(UsageError, match="prompt: wanted one, got 'Hi' and --prompt 'Ho'"):
        parsed("Hi", prompt="Ho")
    with pytest.raises(UsageError, match=r"--file: missing\.txt: "):
        parsed(files=[Path("missing.txt")])
