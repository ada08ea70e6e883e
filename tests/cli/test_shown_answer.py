"""Reasoning is dimmed on a terminal and left out of pipes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from graphml.cli.terminal.console import Bars, write
from graphml.cli.terminal.shown_answer import text_of
from graphml.text.answers import ContentDelta, ReasoningDelta

EVENTS = [ReasoningDelta("hm"), ReasoningDelta(" so\x1b[2J"), ContentDelta("Yes"), ContentDelta(".")]


def shown(events: list[Any], **how: Any) -> str:
    """The text of the events, written as commands do."""
    pieces = []
    for piece in text_of(events, Bars(), **how):
        write(piece)
        pieces.append(piece)
    return "".join(pieces)


def test_a_pipe_gets_the_answer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(EVENTS) == "Yes."
    assert capsys.readouterr().out == "Yes."


def test_a_terminal_shows_reasoning_dimmed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert shown(EVENTS) == "Yes."
    assert capsys.readouterr().out == "\x1b[2mhm\x1b[0m\x1b[2m so[2J\x1b[0m\n\nYes."
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(EVENTS[:1]) == ""
    assert capsys.readouterr().out == "hm\n"
    assert shown(EVENTS, silent=True) == "Yes."
    assert capsys.readouterr().out == "Yes."
