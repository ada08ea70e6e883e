"""Rows as a JSON list or as lines of a table, written one by one. Knows no row in particular."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def as_json(rows: Iterable[Any]) -> Iterator[str]:
    """A list of all rows, each written once it is measured."""
    separator = "["
    for row in rows:
        yield f"{separator}\n  {json.dumps(dataclasses.asdict(row), allow_nan=False)}"
        separator = ","
    yield "\n]\n" if separator == "," else "[]\n"


def heads(columns: Sequence[tuple[str, int, Any]]) -> str:
    """The names of columns, and the line below. A column: its name, its width (negative: text), its cells."""
    names = aligned(columns, [name for name, _, _ in columns])
    return names + aligned(columns, ["-" * (abs(width) - 1) + ":-"[width < 0] for _, width, _ in columns])


def aligned(columns: Sequence[tuple[str, int, Any]], cells: Sequence[str]) -> str:
    """A line of a table."""
    padded = [
        cell.rjust(width) if width > 0 else cell.ljust(-width)
        for cell, (_, width, _) in zip(cells, columns, strict=True)
    ]
    return f"| {' | '.join(padded)} |\n"
