"""Two runs of a model beside each other, as one value: the rows of `compare`, and who made them.

Knows rows; nothing of how they were made.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.inspect.compare.compare import HEAD, ComparedValue, as_cells, as_markdown
from graphml.inspect.dumps.node_names import printable
from graphml.system.notebook_html import html_table


@dataclass(frozen=True)
class Comparison:
    """model: the file's name; a, b: the backends; rows: of all values, in the order of a's graphs."""

    model: str
    a: str
    b: str
    n_tokens: int
    rows: tuple[ComparedValue, ...]

    def worst(self, n: int = 10) -> list[ComparedValue]:
        """The n values that differ most, by their normalised mean squared error."""
        return sorted(self.rows, key=lambda row: -row.difference.nmse)[:n]

    def __str__(self) -> str:
        """A table in Markdown for each step."""
        return as_markdown(self.rows)

    def __repr__(self) -> str:
        about = f"{printable(self.model)}: {self.a} against {self.b}, {self.n_tokens} tokens"
        if not self.rows:
            return f"Comparison({about}, no values)"
        (top,) = self.worst(1)
        largest = f"largest NMSE {top.difference.nmse:.1e} at {printable(top.node)} ({top.step})"
        return f"Comparison({about}, {len(self.rows)} values, {largest})"

    def _repr_html_(self) -> str:
        rows = [(row.step, *as_cells(row)) for row in self.worst(len(self.rows))]
        return html_table(repr(self), ("step", *HEAD), rows)
