"""Streamed text at a terminal's edge: no word is broken, and nothing is lost, however the pieces are cut."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphml.cli.terminal import wrapped_text
from graphml.cli.terminal.wrapped_text import WrappedText

COLUMNS = 24


class Terminal(io.StringIO):
    """Standard output that is a terminal; `lines` is what stands on it."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        lines, column = [""], 0
        for code, letter in re.findall(r"\x1b\[(\d*[A-Za-z])|(.)", self.getvalue(), re.DOTALL):
            if code.endswith("D"):
                column -= int(code[:-1])
            elif code.endswith("K"):
                lines[-1] = lines[-1][:column]
            elif code:
                assert code.endswith("m")
            elif letter == "\n":
                lines.append("")
                column = 0
            else:
                if column == COLUMNS:
                    lines.append("")
                    column = 0
                assert column == len(lines[-1]), "written over"
                lines[-1] += letter
                column += 1
        return lines


def shown(pieces: list[str], colour: str = "") -> list[str]:
    terminal = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        patch.setattr(wrapped_text, "_edge", lambda: COLUMNS - 1)
        text = WrappedText()
        for piece in pieces:
            text.write(piece, colour)
    return terminal.lines()


WORDS = st.lists(st.text("abc", min_size=1, max_size=COLUMNS - 1), min_size=1, max_size=20)


@given(words=WORDS, data=st.data())
def test_words_stay_whole(words: list[str], data: Any) -> None:
    whole = " ".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    lines = shown(pieces, data.draw(st.sampled_from(["", "32"])))
    assert [word for line in lines for word in line.split()] == words
    assert all(len(line) < COLUMNS for line in lines)


def test_lines_and_paragraphs_stay() -> None:
    assert shown(["one\n\ntw", "o\n"]) == ["one", "", "two", ""]
    assert shown(["a" * 22, " b"]) == ["a" * 22 + " ", "b"]
    assert shown(["a" * 23, " b"]) == ["a" * 23, "b"]


def test_a_word_longer_than_a_line_is_written_on() -> None:
    assert "".join(shown(["x " + "a" * 60])).replace(" ", "") == "x" + "a" * 60


def test_wide_letters_take_two_columns_and_break_anywhere() -> None:
    lines = shown(["语" * 30])
    assert "".join(lines) == "语" * 30
    assert max(map(len, lines)) == (COLUMNS - 1) // 2


def test_off_a_terminal_text_is_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = WrappedText()
    text.write("a" * 300 + " b\tc")
    assert capsys.readouterr().out == "a" * 300 + " b\tc"
