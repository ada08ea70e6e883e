"""A table in Markdown with aligned columns: numbers to the right.

Knows values and formats; nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphml.inspect.dumps.node_names import printable


def text_table(rows: Sequence[Mapping[str, Any]], formats: Mapping[str, str]) -> list[str]:
    """The lines of a table of at least one row. formats: of columns of numbers; None is an empty cell."""
    names = list(rows[0])
    cells = [[_cell(row[name], formats.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]
    right = [any(isinstance(row[name], int | float) for row in rows) for name in names]

    def line(values: Sequence[str]) -> str:
        padded = [
            value.rjust(width) if flush else value.ljust(width)
            for value, width, flush in zip(values, widths, right, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * (width - 1) + (":" if flush else "-") for width, flush in zip(widths, right, strict=True)]
    return [line(names), line(rule), *map(line, cells)]


def _cell(value: Any, format_: str | None) -> str:
    if value is None:
        return ""
    # Names of nodes come from the file's tensors and may contain anything.
    return printable(str(value)).replace("|", "\\|") if format_ is None else format(value, format_)
