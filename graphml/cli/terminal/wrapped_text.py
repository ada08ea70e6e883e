"""Text that comes in pieces, broken between words at a terminal's edge.

A word that reaches the edge is taken back and begins the next line. Knows columns and terminals' codes;
nothing of answers.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator

from graphml.cli.terminal.console import CONTROL, write


class WrappedText:
    """Writes pieces to stdout, the first at the begin of a line; off a terminal as they are."""

    def __init__(self) -> None:
        self._column = 0
        self._word: list[tuple[str, str]] = []  # parts of the word that is not over, each with its colour
        self._cells = 0  # of that word

    def write(self, text: str, colour: str = "") -> None:
        """Write one more piece. colour: as of `console.write`."""
        edge = _edge()
        if edge is None:
            write(text, colour)
            return
        for part in _parts(CONTROL.sub("", text)):
            self._write(part, colour, edge)

    def _write(self, part: str, colour: str, edge: int) -> None:
        """Write white space, a wide letter, or letters of one word."""
        if part.isspace():
            self._write_space(part, edge)
            return
        cells = sum(map(_cells, part))
        if cells == 2 * len(part):  # scripts with wide letters break anywhere
            self._end_word()
        if self._column + cells > edge and self._column > self._cells:
            back = f"\x1b[{self._cells}D" if self._cells else ""
            sys.stdout.write(f"{back}\x1b[K\n")
            for begun, its_colour in self._word:
                write(begun, its_colour)
            self._column = self._cells
        write(part, colour)
        self._word.append((part, colour))
        self._cells += cells
        self._column = (self._column + cells) % (edge + 1)  # a word longer than a line breaks by itself

    def _write_space(self, letter: str, edge: int) -> None:
        """Write white space; what would be at the edge ends the line instead."""
        cells = 8 - self._column % 8 if letter == "\t" else 1
        ends = letter == "\n" or self._column + cells > edge
        write("\n" if ends else letter)
        self._column = 0 if ends else self._column + cells
        self._end_word()

    def _end_word(self) -> None:
        self._word.clear()
        self._cells = 0


def _parts(text: str) -> Iterator[str]:
    """White space and wide letters one by one, runs of other letters together."""
    begin = 0
    for at, letter in enumerate(text):
        if letter.isspace() or _cells(letter) == 2:
            if begin < at:
                yield text[begin:at]
            yield letter
            begin = at + 1
    if begin < len(text):
        yield text[begin:]


def _cells(letter: str) -> int:
    """The columns that a letter takes."""
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _edge() -> int | None:
    """The columns that are written, of a terminal's all but the last, where it would break by itself."""
    if not sys.stdout.isatty():
        return None
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return None
    return columns - 1 if columns > 20 else None
