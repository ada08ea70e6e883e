"""Rows as a JSON list or as lines of a table, written one by one, and their speed as a cell of one.

Knows no row in particular.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

NOISE_NOTE = "noisy: the quartiles of rows marked * lie more than 10 % of the median apart\n"


def speed(row: Any) -> str:
    """A row's median_ts and half the distance of its quartiles, `*` if that is large."""
    return f"{'*' * row.noisy}{row.median_ts:.2f} ± {(row.q3_ts - row.q1_ts) / 2:.2f}"


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


def table(
    columns: Sequence[tuple[str, int, Callable[[Any], str]]],
    rows: Iterable[Any],
    ends: Callable[[Any], str] = lambda row: "",
) -> Iterator[str]:
    """A line for each row once it is measured, what `ends` has behind the last one, and a note on noise."""
    last, noisy = None, False
    for row in rows:
        head = heads(columns) if last is None else ""
        yield head + aligned(columns, [cell(row) for _, _, cell in columns])
        last, noisy = row, noisy or row.noisy
    ending = "" if last is None else ends(last)
    if ending or noisy:
        yield f"\n{ending}{NOISE_NOTE if noisy else ''}"
