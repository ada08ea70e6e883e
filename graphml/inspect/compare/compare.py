"""Compares two runs of a model value by value: the differences in the order of the graph.

Knows observations; nothing of how they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from graphml.inspect.compare.copies import Copied
from graphml.inspect.compare.observe import Observation, ObservedStep
from graphml.inspect.compare.tolerances import ArrayDifference, difference
from graphml.inspect.dumps.document import Document, source_of
from graphml.inspect.profile.text_table import aligned
from graphml.ir.node import Node
from graphml.ir.ops.layout import maker
from graphml.other_attributes import NamesOthers

LARGEST = 1e30  # in place of an infinite error, which JSON lacks


@dataclass(frozen=True)
class ComparedValue(NamesOthers):
    """A value of both runs; or of A alone, after a copy between devices and before it.

    copied: that copy; source: the line that built the value.
    """

    _same: ClassVar = {
        "name": "node", "nmse": "difference.nmse", "max_abs": "difference.max_abs", "to_dict": "as_json",
    }  # fmt: skip

    step: str
    node: str
    op: str
    other_op: str
    dtype: str
    shape: tuple[int, ...]
    difference: ArrayDifference
    copied: Copied | None = None
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "step": self.step, "node": self.node, "op": self.op, "other_op": self.other_op,
            "dtype": self.dtype, "shape": list(self.shape), **self.difference.as_json(),
            "copied": None if self.copied is None else asdict(self.copied),
        }  # fmt: skip


def compare(a: Observation, b: Observation) -> list[ComparedValue]:
    """The rows of all values of the same name and shape in both runs, in the order of a's graphs.

    A copy between a's devices is compared with the value before it: its row has the op `copy`.
    """
    rows = []
    for step, other in zip(a.steps, b.steps, strict=True):
        ops = {node.name: maker(node).op.name for node in other.graph.nodes}
        for node in step.graph.nodes:
            copied = step.copies.get(node.name)
            if copied is not None:
                rows.append(_copy_row(step, node, copied))
                continue
            got, wanted = step.values.get(node.name), other.values.get(node.name)
            if got is None or wanted is None or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
                continue
            rows.append(
                ComparedValue(
                    step.name, node.name, maker(node).op.name, ops[node.name], node.dtype.name, got.shape,
                    difference(got, wanted),
                )
            )  # fmt: skip
    return rows


def _copy_row(step: ObservedStep, node: Node, copied: Copied) -> ComparedValue:
    after, before = step.values[node.name], step.values[copied.value]
    return ComparedValue(
        step.name, node.name, "copy", "copy", node.dtype.name, after.shape, difference(after, before), copied,
        source_of(node.source) or "",
    )  # fmt: skip


def with_errors(document: Document, rows: Sequence[ComparedValue]) -> Document:
    """The document of the graph of the last step with its errors, for the viewer."""
    own = [row for row in rows if row.step == rows[-1].step and row.copied is None]
    errors = {row.node: min(row.difference.nmse, LARGEST) for row in own}
    return {**document, "overlays": {**document["overlays"], "nmse": errors}}


def as_markdown(rows: Sequence[ComparedValue]) -> str:
    """A table for each step; lines of equal length."""
    parts = []
    for step in dict.fromkeys(row.step for row in rows):
        own = [row for row in rows if row.step == step]
        parts.append(f"## {step}\n\n" + aligned(HEAD, [as_cells(row) for row in own]))
    return "\n".join(parts)


def wrong_copies(rows: Sequence[ComparedValue]) -> str:
    """A line for each copy between devices that changed its value."""
    return "".join(
        f"wrong copy in {row.step}: {row.copied.value} from {row.copied.source} to {row.copied.target}, "
        f"built at {row.source or 'an unknown line'}\n"
        for row in rows
        if row.copied is not None and row.difference.nmse
    )


HEAD = ("node", "op", "shape", "NMSE", "max abs", "max ULP", "median ULP", "NaN", "Inf")


def as_cells(row: ComparedValue) -> tuple[str, ...]:
    """The texts of a row, one for each column of `HEAD`."""
    errors = row.difference
    op = row.op if row.op == row.other_op else f"{row.op} / {row.other_op}"
    op += f" {row.copied.source} to {row.copied.target}" if row.copied is not None else ""
    counts = (f"{a}" if a == b else f"{a} / {b}" for a, b in (errors.nan, errors.inf))
    return (
        row.node, op, "x".join(map(str, row.shape)), f"{errors.nmse:.1e}", f"{errors.max_abs:.1e}",
        str(errors.max_ulp), f"{errors.median_ulp:.0f}", *counts,
    )  # fmt: skip
