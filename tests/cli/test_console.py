"""Bars and text: drawn on terminals only, and nothing that could steer one."""

from __future__ import annotations

import io
import os
import re
import struct
import sys
from pathlib import Path

import pytest

import graphml
from graphml.cli.main import app
from graphml.cli.terminal import console
from graphml.system.progress_labels import WORK, amount, size
from tests import tiny_model
from tests.looped import looped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_bar_off_a_terminal() -> None:
    stream = io.StringIO()
    with console.Bars(stream) as bars:
        for done in range(10):
            bars.report("download", done, 10)
    assert stream.getvalue() == ""


def test_bars_appear_when_work_takes_long_and_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with console.Bars(stream) as bars:
        bars.report("compiling kernels", 0, 4)
        bars.report("compiling kernels", 4, 4)
        assert stream.getvalue() == ""  # over at once
        monkeypatch.setattr(console, "PATIENCE_S", -1.0)
        bars.report("download", 1 << 20, 4 << 20)
        bars.report("compile", 1, 4)
        bars.report("something", 5, 0)
    shown = stream.getvalue()
    for text in ("Downloading", "1.0 MiB of 4.0 MiB", "Compiling kernels", "1 of 4 kernels", "Something"):
        assert text in shown
    assert shown.rstrip().endswith("\x1b[2K")  # erased


def test_models_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, shown in ((Terminal(), "ab\n\tc"), (io.StringIO(), "a\x1b]0;\x07b\n\tc\x9b")):
        monkeypatch.setattr("sys.stdout", stream)
        console.write("a\x1b]0;\x07b\n\tc\x9b" if shown != "ab\n\tc" else "a\x1b\x07b\n\tc\x9b")
        assert stream.getvalue() == shown


def test_errors_that_quote_a_model_cannot_steer_it_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "hostile.jinja"
    template.write_text("{{ raise_exception('a\x1b]0;\x07b') }}")
    model = tiny_model.write(tmp_path / "tiny.gguf")
    for stream, shown in ((Terminal(), "line 1: a]0;b\n"), (io.StringIO(), "line 1: a\x1b]0;\x07b\n")):
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr("sys.stdin", io.StringIO())
        with pytest.raises(SystemExit):
            app(["run", str(model), "-p", "x", "--backend", "reference", "--template", str(template)])
        assert stream.getvalue().endswith(shown)


@looped(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"TERM": "xterm", "NO_COLOR": ""}, "\x1b[2mab\x1b[0m\n"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "ab\n"),
        ({"TERM": "dumb", "NO_COLOR": ""}, "ab\n"),
    ],
)
def test_remarks_are_dimmed_where_the_user_and_the_terminal_allow_it(
    variables: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for stream, text in ((Terminal(), shown), (io.StringIO(), "")):
        monkeypatch.setattr("sys.stderr", stream)
        console.remark("a\x1bb")
        assert stream.getvalue() == text


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_notes_are_broken_between_words_where_the_terminal_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl
    import pty
    import termios

    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with os.fdopen(far, "w") as stream, os.fdopen(near, "rb", buffering=0) as shown:
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "dumb")
        console.say("prompt 169 tokens, answer 7\n  kept: as it is")
        stream.flush()
        wanted = b"prompt 169 tokens,\r\nanswer 7\r\n  kept: as it is\r\n"
        found = b""
        while not found.endswith(b"it is\r\n"):  # a terminal hands over what is there, maybe a part
            found += shown.read(999)
        assert found == wanted
        whole = "a/path/of/more/than/20/letters"
        assert console.fold(whole) == whole, "what is copied is not broken"
    monkeypatch.setattr("sys.stderr", io.StringIO())
    note = "a note that goes to a file stays a line"
    assert console.fold(note) == note


def test_all_work_that_is_reported_has_a_label_and_a_unit() -> None:
    pattern = re.compile(r"""(?:progress|report|tell)\(\s*"([a-z ]+)",""")
    folders = [Path(graphml.__file__).parent, Path(graphml.__file__).parents[1] / "backends"]
    reported = {
        name
        for folder in folders
        for path in folder.rglob("*.py")
        for name in pattern.findall(path.read_text())
    }
    assert {"compile", "prefill", "mapping", "perplexity", "generate", "graphs"} <= reported <= set(WORK)
    assert amount("perplexity", 3, 12) == "3 of 12 chunks"
    assert amount("download", 1 << 20, 0) == "1.0 MiB"
