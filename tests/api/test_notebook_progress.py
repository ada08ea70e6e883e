"""Progress in notebooks: a line while a model is opened, nothing afterwards, and nothing elsewhere."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import graphml
from tests.stories import STORIES


class ZMQInteractiveShell:
    """What IPython's kernel has; a terminal's shell has another name."""


class TerminalInteractiveShell:
    """IPython at a terminal."""


@pytest.mark.parametrize(("shell", "shows"), [(ZMQInteractiveShell, True), (TerminalInteractiveShell, False)])
def test_a_line_while_a_model_is_opened(
    shell: type, shows: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=shell))
    with graphml.load(STORIES, "reference") as model:
        shown = capsys.readouterr().out
        assert ("Mapping the file: 1015.8 KiB of 1015.8 KiB" in shown) == shows
        assert (shown[-1:] == "\r") == shows  # the line is removed
        model.generate("Once", max_tokens=1)
        assert capsys.readouterr().out == ""
    with graphml.load(STORIES, "reference", progress=lambda *told: None):
        assert capsys.readouterr().out == ""
