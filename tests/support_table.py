"""The tables of docs/backends.md: which ops and formats each backend has kernels for.

`python -m tests.support_table` asks the backends and writes the tables anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphml.conformance import suite
from graphml.conformance.cases import multiplies
from graphml.conformance.suite import NATIVE, NUMPY, Support, apart, support
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.loading import discovery
from graphml.passes.fusion import all_ops

PAGE = Path(__file__).parents[1] / "docs" / "backends.md"
HOW = "write the tables anew: python -m tests.support_table"
OPS, WEIGHTS, CACHES = "op", "weights", "cache"  # first columns
NEVER = "never asked"  # a conversion that the backend wants of nobody


def supported() -> dict[str, list[Support]]:
    """Backend -> what it says of every op and format."""
    found = {}
    for name in discovery.backend_names():
        backend = discovery.backend(name)
        found[name] = [*support(backend, suite.chosen(backend)), *apart(backend)]
    return found


def ops_table(found: Mapping[str, Sequence[Support]]) -> list[list[str]]:
    """A row for each op on plain numbers, or converted as the backend wants it."""
    ops = sorted({one.op for some in found.values() for one in some})
    return [[OPS, *found], *([f"`{op}`", *(_how(op, some) for some in found.values())] for op in ops)]


def _how(op: str, some: Sequence[Support]) -> str:
    of_op = [one for one in some if one.op == op]
    plain = [one.how for one in of_op if one.format == "f32"] or [one.how for one in of_op]
    return plain[0] if plain else NEVER


def formats_table(
    found: Mapping[str, Sequence[Support]], first: str, formats: Sequence[str], ops: Sequence[str]
) -> list[list[str]]:
    """A row for each format: the ops that have kernels for it, or that all of them have, or none."""

    def cell(some: Sequence[Support], form: str) -> str:
        known = {one.op: one.how for one in some if one.format == form and one.op in ops}
        native = [op for op, how in known.items() if how == NATIVE]
        without = [op for op, how in known.items() if how != NATIVE]
        if not native:
            return NUMPY
        return "all" if not without else f"all but {', '.join(f'`{op}`' for op in without)}"

    return [
        [first, *found],
        *([f"`{form}`", *(cell(some, form) for some in found.values())] for form in formats),
    ]


def tables() -> dict[str, list[list[str]]]:
    """First column -> header and rows of each table."""
    found = supported()
    some = next(iter(found.values()))
    weights = sorted(
        name for name, op in all_ops().items() if "from_dtype" in op.attributes or multiplies(op)
    )
    caches = sorted(name for name, op in all_ops().items() if op.is_write or "k_dtype" in op.attributes)
    formats = sorted({one.format for one in some if one.op == "dequantize"})
    return {
        OPS: ops_table(found),
        WEIGHTS: formats_table(found, WEIGHTS, formats, weights),
        CACHES: formats_table(found, CACHES, CACHE_DTYPES, caches),
    }


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table as it stands on the page."""
    lines = [" | ".join(row) for row in rows]
    return (
        "\n".join(f"| {line} |" for line in lines[:1])
        + "\n|"
        + "---|" * len(rows[0])
        + "\n"
        + "".join(f"| {line} |\n" for line in lines[1:])
    )


def write() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for first, rows in tables().items():
        old = re.compile(rf"^\| {first} \|(.*\n)+?(?=\n|\Z)", re.MULTILINE)
        assert len(old.findall(text)) == 1, first
        text = old.sub(markdown(rows).replace("\\", r"\\"), text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
