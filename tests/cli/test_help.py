"""Pages of help: names whole and lines no wider than the terminal, a short page first."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from graphml.cli.help_pages import GROUPS
from graphml.cli.main import COMMANDS, app

NARROW = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}


def page(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, list(arguments), env=NARROW)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def options_of(command: Any) -> set[str]:
    return {name for param in command.params if param.param_type_name == "option" for name in param.opts}


def shown(lines: list[str]) -> set[str]:
    """The names in the left column."""
    left = (re.match(r"  (-[^ ].*?)(?:  |$)", line) for line in lines)
    return {name for match in left if match for name in re.findall(r"(?<![\w-])--?[\w-]+", match[1])}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_a_page_fits_and_names_are_whole(command: str, flag: str) -> None:
    lines = page(command, flag)
    assert max(map(len, lines)) <= 80
    if flag == "--help":
        assert len(lines) < 120 or command == "serve"
    group: Any = typer.main.get_command(app)
    every = options_of(group.get_command(None, command)) - {"--help", "-h"}
    if command == "serve":
        every = {"--model", "-m", "--port", "--temp"}
    left_out = every - shown(lines)
    if flag == "--help-all":
        assert not left_out
    elif left_out:
        assert any(re.fullmatch(rf" *\d+ more options: .*{command} --help-all", line) for line in lines)


def test_the_short_page_has_what_is_needed_and_the_long_one_has_titles() -> None:
    short, whole = page("run", "--help"), page("run", "--help-all")
    assert {"--prompt", "--temp", "--ctx", "--model", "--threads"} <= shown(short)
    assert "--mirostat" not in shown(short)
    for title in ("Options:", "Sampling:", "Opening the model:", "Full context:", "Other ways of decoding:"):
        assert title in whole
    prompt = page("run", "--raw", "-n", "3", "--help-all")
    assert prompt == whole


@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_page_has_the_options_of_the_command_itself(command: str) -> None:
    """What it shares with others may be left to the long page, what it alone has may not."""
    group: Any = typer.main.get_command(app)
    params = group.get_command(None, command).params
    options = [param for param in params if param.param_type_name == "option"]
    own = {
        name for param in options if param.required or param.rich_help_panel is None for name in param.opts
    }
    assert own - {"--help", "-h"} <= shown(page(command, "--help")) or command == "serve"


def test_every_title_is_of_a_class_that_a_command_has() -> None:
    group: Any = typer.main.get_command(app)
    titles = {
        getattr(param, "rich_help_panel", None)
        for command in COMMANDS
        for param in group.get_command(None, command).params
    }
    assert set(GROUPS.values()) <= titles


def test_behind_two_dashes_it_is_a_prompt() -> None:
    done = CliRunner().invoke(app, ["run", "-m", "/nowhere.gguf", "--", "--help-all"], env=NARROW)
    assert "no such file" in done.output


def test_the_first_page_says_what_each_command_is_for() -> None:
    text = " ".join(" ".join(page("--help")).split())
    group: Any = typer.main.get_command(app)
    for name in COMMANDS:
        assert f"{name} {' '.join(group.get_command(None, name).help.split(chr(10) * 2)[0].split())}" in text
    assert "bench compare" not in text
    assert "compare Compare two results" in " ".join(" ".join(page("bench", "--help")).split())
