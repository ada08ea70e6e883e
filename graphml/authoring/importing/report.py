"""The report of an import: what was recognised from which lines, how exact each part is, which fusions apply.

Knows an import and its proof; nothing of files. As Markdown for a terminal, and as a page of HTML.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.authoring.importing.importing import Imported
from graphml.authoring.importing.proof import Proof
from graphml.authoring.verify.verdict_text import as_text

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:62em;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #8886;padding:.2em .6em;"
    "text-align:left}pre{background:#8881;padding:1em;overflow:auto}:root{color-scheme:light dark}"
)


NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$|_| )")  # of a layer


@dataclass(frozen=True)
class ReportTable:
    """A table of the report, with its title."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """title, tables, remarks, and the comparison part by part as text."""

    title: str
    tables: Sequence[ReportTable]
    remarks: Sequence[str]
    parts: Sequence[str]

    def markdown(self) -> str:
        """For a terminal."""
        tables = [
            "\n".join(map(_row, (table.head, ["---"] * len(table.head), *table.rows)))
            for table in self.tables
        ]
        return "\n\n".join([f"# {self.title}", *tables, *self.remarks, *self.parts]).rstrip() + "\n"

    def page(self, text: str) -> str:
        """HTML, with the text of the imported file at its end; it refers to nothing outside."""
        lines = [f"<h1>{html.escape(self.title)}</h1>"]
        for table in self.tables:
            lines += [f"<h2>{html.escape(table.title)}</h2>", "<table>", _cells("th", table.head)]
            lines += [*(_cells("td", row) for row in table.rows), "</table>"]
        lines += [f"<p>{html.escape(remark)}</p>" for remark in self.remarks]
        lines += ["<h2>Part by part</h2>", *(f"<pre>{html.escape(part)}</pre>" for part in self.parts)]
        lines += ["<h2>The file</h2>", f"<pre>{html.escape(text)}</pre>"]
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title><style>{STYLE}</style>'
        return "\n".join(["<!doctype html>", head, *lines]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{html.escape(cell)}</{kind}>' for cell in cells)}</tr>"


def counted(times: Counter[Any]) -> list[tuple[str, ...]]:
    """Rows with how often each is there."""
    return [(*([key] if isinstance(key, str) else key), str(count)) for key, count in times.items()]


def report(imported: Imported, proof: Proof, source: str) -> Report:
    """The report of an import."""
    description = imported.dependence.description
    recognised = Counter(
        (match.op, NUMBER.sub("*", node.path) or "the model", Path(node.line).name)
        for node in imported.dependence.needed
        if (match := imported.recognised.get(node.name)) is not None
    )
    inside = set(imported.recognised)
    plain = Counter(
        expr.op for expr in imported.made_by_expression if imported.made_by[id(expr)].name not in inside
    )
    exact = [(line.what, str(line.tokens), f"{line.nmse:.1e}") for line in proof.lines]
    misses = Counter((fusion, NUMBER.sub("*", reason)) for fusion, reason in proof.misses)
    tables = [
        ReportTable("Recognised", ("recognised", "where", "from", "times"), counted(recognised)),
        ReportTable("Taken over op by op", ("op by op", "times"), sorted(counted(plain))),
        ReportTable("How exact", ("against", "tokens", "NMSE"), exact),
        ReportTable("Fusions", ("fusion", f"times, {proof.fused_on}"), counted(Counter(proof.fusions))),
        ReportTable("Fusions that do not apply", ("not fused", "because", "times"), counted(misses)),
    ]
    parts = [
        as_text(verdict, record, f"{imported.architecture}, random parameters", "imported")
        for verdict, record in proof.verdicts[-1:]
    ]
    remarks = [f"{proof.left_out[0].upper()}{proof.left_out[1:]}."] if proof.left_out else []
    title = f"{description.model_class} from {source} ({description.by})"
    return Report(title, [table for table in tables if table.rows], remarks, parts)
