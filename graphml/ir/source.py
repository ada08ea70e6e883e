"""Source lines outside graphml: the line that made a node, or the line to blame in an error."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
_own_files: set[str] = set()  # files of the package `graphml` so far


@dataclass(frozen=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_known: dict[tuple[str, int], Source] = {}
_lines: dict[int, dict[int, Source]] = {}
"""The lines that made nodes, by the id of their code object and the instruction. Read for every node:
`f_lineno` counts lines from the beginning of the function, and code objects are hashed whole."""


def is_own(file: str) -> bool:
    """Whether a file belongs to the package `graphml`, or is Python's own way to import one."""
    if file in _own_files:
        return True
    own = file.startswith((_OWN_FOLDER, "<frozen importlib"))
    if own:
        _own_files.add(file)
    return own


def caller() -> Source | None:
    """The innermost line of code outside the package `graphml`: an architecture's, or the user's.

    For functions of graphml: their own frame is not looked at.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename not in _own_files:
            lines = _lines.get(id(code))
            if lines is None:
                lines = _lines_of(code)
            if lines is not None:
                at = frame.f_lasti
                return lines[at] if at in lines else _line_at(frame, lines)
        frame = frame.f_back
    return None


def _lines_of(code: CodeType) -> dict[int, Source] | None:
    """The lines of a code object so far; None for code of graphml."""
    if is_own(code.co_filename):
        return None
    weakref.finalize(code, _lines.pop, id(code), None).atexit = False  # its id may be another's then
    return _lines.setdefault(id(code), {})


def _line_at(frame: FrameType, lines: dict[int, Source]) -> Source:
    line = frame.f_code.co_filename, frame.f_lineno
    source = lines[frame.f_lasti] = _known.setdefault(line, Source(*line))
    return source


def callers(lines: Iterator[tuple[str, int]]) -> str:
    """` (at FILE:LINE)` of the innermost line outside graphml, for an error.

    lines: file and line of each frame, the innermost first. If graphml called code of another folder, an
    architecture that uses parts of others, say, the line there follows.
    """
    outside: list[Source] = []
    for file, line in lines:
        if not is_own(file):
            outside.append(Source(file, line))
        elif outside:  # graphml itself: it called the outermost of these
            folder = Path(outside[0].file).parent
            other = next((source for source in outside if Path(source.file).parent != folder), None)
            return f" (at {outside[0]}, called from {other})" if other else f" (at {outside[0]})"
    return f" (at {outside[0]})" if outside else ""


def called_from() -> str:
    """` (at FILE:LINE)` of the code that called graphml; see `callers`."""

    def frames() -> Iterator[tuple[str, int]]:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back

    return callers(frames())
