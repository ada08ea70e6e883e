"""Source lines outside graphml: the line that made a node, or the line to blame in an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
_own: dict[str, bool] = {}  # file -> whether it is of the package `graphml`; read for every node


@dataclass(frozen=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_known: dict[tuple[str, int], Source] = {}


def is_own(file: str) -> bool:
    """Whether a file belongs to the package `graphml`, or is Python's own way to import one."""
    known = _own.get(file)
    if known is None:
        known = _own[file] = file.startswith((_OWN_FOLDER, "<frozen importlib"))
    return known


def caller() -> Source | None:
    """The innermost line of code outside the package `graphml`: an architecture's, or the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (_own[file] if file in _own else is_own(file)):
            line = file, frame.f_lineno
            return _known[line] if line in _known else _known.setdefault(line, Source(*line))
        frame = frame.f_back
    return None


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
            other = next((one for one in outside if Path(one.file).parent != folder), None)
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
