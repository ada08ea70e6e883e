"""What commands print: data on stdout, progress bars and remarks on stderr, those only on a terminal.

Knows terminals; nothing of models. rich is imported only where a bar is really drawn.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import zip_longest
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO

from graphml import settings
from graphml.errors import UsageError
from graphml.system.closing import Closing
from graphml.system.progress_labels import amount, label

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


PATIENCE_S = 0.3  # work that is over sooner shows no bar
# A model could steer the terminal that shows its answer.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STEERS = re.compile(r"[\x7f-\x9f]")  # of JSON, which escapes the others


class Bars(Closing):
    """Progress bars on stderr that vanish when their work is done. `report` is what makes and moves them."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._drawn = self._stream.isatty() and not _quiet
        self._since: dict[str, float] = {}
        self.notes: dict[str, str] = {}  # name of the work -> what is shown behind its amount
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def report(self, what: str, done: int, total: int) -> None:
        """Take a report of long work: `done` of `total` (0: unknown). Draws nothing off a terminal."""
        if not self._drawn:
            return
        since = self._since.setdefault(what, time.monotonic())
        if total and done >= total:
            self._remove(what)
        elif what in self._tasks or time.monotonic() - since > PATIENCE_S:
            self._draw(what, done, total)

    def close(self) -> None:
        """Remove all bars."""
        self._tasks.clear()
        self._since.clear()
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._progress is None:
            self._progress = _progress(self._stream)
            self._progress.start()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(label(what), total=total or None, amount="")
        shown = amount(what, done, total) + self.notes.get(what, "")
        self._progress.update(self._tasks[what], completed=done, total=total or None, amount=shown)

    def _remove(self, what: str) -> None:
        self._since.pop(what, None)
        task = self._tasks.pop(what, None)
        if task is not None and self._progress is not None:
            self._progress.remove_task(task)
            if not self._tasks:
                self.close()


def _progress(stream: TextIO) -> Progress:
    from rich.console import Console  # 30 ms that most runs do not need
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    return Progress(*columns, TimeRemainingColumn(), console=Console(file=stream), transient=True)


_quiet = False


def be_quiet(state: bool = True) -> None:
    """Have no bars and no remarks from now on; errors and warnings stay."""
    global _quiet
    _quiet = state


def remark(text: str) -> None:
    """Say something beside the data: on stderr, if that is a terminal."""
    if sys.stderr.isatty() and not _quiet:
        say(text)


def fold(text: str) -> str:
    """The text with lines that end between words, where stderr is a terminal that is narrower."""
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return text
    lines = text.split("\n")
    if width < 1 or max(map(len, lines)) <= width:
        return text
    return "\n".join(
        line if len(line) <= width else fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


def say(text: str) -> None:
    """Print a line on stderr: dimmed on a terminal, and without the characters that could steer it."""
    if sys.stderr.isatty():
        text = fold(CONTROL.sub("", text))
        text = f"\x1b[2m{text}\x1b[0m" if settings.colours() else text
    print(text, file=sys.stderr)


def print_error(error: Exception) -> None:
    """Print an error as one line on stderr; to a terminal without the characters that could steer it.

    Its text may quote a model: names of tensors, what a chat template raises.
    """
    line = f"graphml: {' '.join(str(error).splitlines())}"
    print(fold(CONTROL.sub("", line)) if sys.stderr.isatty() else line, file=sys.stderr)


def write(text: str, colour: str = "") -> None:
    """Write generated text to stdout at once; to a terminal without the characters that could steer it.

    colour: the code of one, for terminals that show colours.
    """
    if sys.stdout.isatty():
        text = CONTROL.sub("", text)
        text = f"\x1b[{colour}m{text}\x1b[0m" if text and colour and settings.colours() else text
    sys.stdout.write(text)
    sys.stdout.flush()


def write_file(path: Path, text: str, option: str = "") -> None:
    """Write a text to the file that an option names, whole or not at all; a `UsageError` where that fails."""
    from graphml.system.replaced_file import replacing  # not for a page of help

    try:
        if path.exists() and not path.is_file():  # a terminal, or a pipe
            path.write_text(text, encoding="utf-8")
        else:
            with replacing(path, durable=False) as partial:
                partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror or error}".lstrip()) from None


def write_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object; to a terminal with what could steer it escaped. Numbers JSON lacks are null."""
    shown = sys.stdout.isatty()
    text = json.dumps(
        _of_json(value), ensure_ascii=False, indent=2 if shown else None, default=str, allow_nan=False
    )
    print(_STEERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) if shown else text)


def _of_json(value: Any) -> Any:
    """A value with None in the place of infinities and of what is no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _of_json(part) for key, part in value.items()}
    return [_of_json(part) for part in value] if isinstance(value, list | tuple) else value


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table without rules, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


@contextmanager
def own_output(alone: bool = True) -> Iterator[TextIO]:
    """Stdout for what is ours; within, what libraries print there is dropped, as Ray prints logs of nodes.

    alone: False: nothing is dropped.
    """
    out = sys.stdout
    if not alone:
        yield out
        return
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        yield out


def write_both(out: Iterator[str], error: Iterator[str]) -> None:
    """Write the pieces of each, in turns."""
    for piece, other in zip_longest(out, error, fillvalue=""):
        for stream, text in ((sys.stdout, piece), (sys.stderr, other)):
            stream.write(text)
            stream.flush()
