"""Tables in Markdown with aligned columns: numbers to the right.

Knows values and formats; nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from graphml.inspect.dumps.node_names import printable


def text_table(rows: Sequence[Mapping[str, Any]], formats: Mapping[str, str]) -> list[str]:
    """The lines of a table of at least one row. formats: of columns of numbers; None is an empty cell."""
    names = list(rows[0])
    cells = [[_cell(row[name], formats.get(name)) for name in names] for row in rows]
    right = [name for name in names if any(isinstance(row[name], int | float) for row in rows)]
    return aligned(names, cells, right).splitlines()


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """A table whose columns are as wide as their widest cell. right: names of those aligned to the right."""
    widths = [max(len(cells[i]) for cells in (head, *rows)) for i in range(len(head))]
    pads = [str.rjust if name in right else str.ljust for name in head]
    rule = [
        "-" * (width - (name in right)) + ":" * (name in right)
        for name, width in zip(head, widths, strict=True)
    ]

    def line(cells: Sequence[str]) -> str:
        padded = [pad(cell, width) for pad, cell, width in zip(pads, cells, widths, strict=True)]
        return f"| {' | '.join(padded)} |\n"

    return "".join(map(line, (head, rule, *rows)))


def _cell(value: Any, format_: str | None) -> str:
    if value is None:
        return ""
    # Names of nodes come from the file's tensors and may contain anything.
    return printable(str(value)).replace("|", "\\|") if format_ is None else format(value, format_)
