"""Files of texts, each with its line: lines, JSON lines, CSV and tables with a column of texts.

Knows files and columns; nothing of what becomes of the texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from graphml.errors import UsageError, did_you_mean
from graphml.system.row_files import WrongLine, read_csv, read_rows

COLUMN: Final = "text"
LINES: Final = (".txt",)
ENDINGS: Final = (*LINES, ".jsonl", ".ndjson", ".csv", ".parquet")
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class NumberedText:
    """A text and where it is: `FILE: line N`. row: the fields of its line by column."""

    text: str
    place: str
    row: Mapping[str, Any]


class TextFile:
    """A file of texts, read a few at a time. column: which has them; None: "text"."""

    def __init__(self, path: Path, column: str | None = None) -> None:
        """UsageError for a file that is not there, or of another kind."""
        self.path, self.column = path, column or COLUMN
        self.ending = path.suffix.lower()
        if self.ending not in ENDINGS:
            raise UsageError(
                f"{path}: wanted a file that ends in {', '.join(ENDINGS)}; got {path.name!r:.80}"
            )
        if not path.is_file():
            what = "is a folder; wanted a file" if path.is_dir() else "no such file"
            raise UsageError(f"{path}: {what}")
        if self.ending in LINES and column is not None:
            raise UsageError(f"column: wanted none for lines of text, {path}; got {column!r:.80}")
        self._unit = "row" if self.ending == ".parquet" else "line"

    def __iter__(self) -> Iterator[NumberedText]:
        """All texts in order; UsageError for a line that is none, with its number."""
        rows = read_csv(self.path) if self.ending == ".csv" else read_rows(self.path, empty=True)
        for number, row in rows:
            place = f"{self.path}: {self._unit} {number}"
            if isinstance(row, WrongLine):
                raise UsageError(f"{place}: {row.problem}")
            fields = {COLUMN: row} if isinstance(row, str) else row
            if not isinstance(fields, Mapping):
                raise UsageError(f"{place}: wanted an object or a text; got {row!r:.80}")
            yield NumberedText(self._text(fields, place), place, fields)

    def _text(self, fields: Mapping[str, Any], place: str) -> str:
        if self.column not in fields:
            hint = did_you_mean(self.column, list(fields), 1)
            names = ", ".join(map(str, fields))
            raise UsageError(f"{place}: column: wanted one of {names:.200}; got {self.column!r:.80}.{hint}")
        text = fields[self.column]
        if not isinstance(text, str):
            raise UsageError(f"{place}: {self.column}: wanted a text; got {text!r:.80}")
        return text

    def after(self, count: int) -> Iterator[NumberedText]:
        """The texts behind the first `count`."""
        return islice(self, count, None)

    def count(self) -> int:
        """How many texts there are; UsageError for none, and for the first line that is no text."""
        number = sum(1 for _ in self)
        if not number:
            raise UsageError(f"{self.path}: wanted texts; the file has none")
        return number

    def fingerprint(self) -> str:
        """A hash of the file's bytes."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            for part in iter(lambda: file.read(_CHUNK), b""):
                digest.update(part)
        return digest.hexdigest()
