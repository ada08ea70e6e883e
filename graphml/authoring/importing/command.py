"""The whole import: traced by a process that has torch, recognised, written to a folder, proved, reported.

Nothing is written where the caller wants it before the proof holds. The report names what was
recognised from which lines and how exact each part is. Knows the order of the steps.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.description import TracedModule, read_description
from graphml.authoring.importing.importing import Imported, understood, written
from graphml.authoring.importing.other_configs import REQUEST, Settled, read_trials, settle
from graphml.authoring.importing.proof import LIMIT, Proof, longest, prove, write_checkpoint, write_weights
from graphml.authoring.importing.vocabulary import tokenizer_keys
from graphml.authoring.peer_process import ask
from graphml.authoring.verify.verdict_text import as_text
from graphml.errors import ArchitectureError, UsageError
from graphml.loading.huggingface.packed import plain
from graphml.loading.own_ops import load_own_ops
from graphml.system.progress_labels import size
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import read_safetensors

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


def report(imported: Imported, proof: Proof, source: str, settled: Settled | None = None) -> Report:
    """The report of an import. settled: what came of other values of config.json's fields."""
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
        ReportTable("Other values of config.json", ("outcome", "fields"), settled.rows() if settled else ()),
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


PROGRAM = "trace_torch.py"


def check_source(source: str) -> Path:
    """The folder or the file of a source; a UsageError for anything else."""
    kind, _, rest = source.partition(":")
    if kind == "hf" and rest:
        folder = Path(rest)
        if not (folder / "config.json").is_file():
            raise UsageError(f"{folder}: wanted a folder with config.json; download the checkpoint first")
        return folder
    file, _, factory = rest.rpartition(":")
    if kind == "module" and file and factory.isidentifier():
        if not Path(file).is_file():
            raise UsageError(f"{file}: no such file")
        return Path(file)
    raise UsageError(f"SOURCE: wanted hf:FOLDER or module:FILE.py:factory; got {source!r}")


def trace(source: str, out: Path, python: str = sys.executable, trusted: bool = False) -> TracedModule:
    """The description of a source.

    out: a folder for it and its trials; python: of an environment with torch; trusted: run the folder's code.
    """
    path = check_source(source)
    kind, _, rest = source.partition(":")
    whole = f"{path.resolve()}" if kind == "hf" else f"{path.resolve()}:{rest.rpartition(':')[2]}"
    request = {"source": f"{kind}:{whole}", "out": str(out), "trusted": trusted, **REQUEST}
    ask("import", PROGRAM, python, request)
    return read_description(out)


Array = NDArray[Any]


@dataclass(frozen=True)
class Done:
    """The text of the file, and what is told of it."""

    text: str
    report: Report


def import_source(
    source: str,
    name: str,
    python: str = sys.executable,
    trusted: bool = False,
    weights: Path | None = None,
    tokenizer: Path | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Done:
    """Import a source. name: of the file without .py; weights: the GGUF file to write.

    tokenizer: of a plain module, see `vocabulary`. say: is told what the proof takes, before it begins.

    ArchitectureError names what cannot be imported, or what the proof found wrong.
    """
    path = check_source(source)
    load_own_ops()
    folder = path if source.startswith("hf:") else None
    with tempfile.TemporaryDirectory() as traced:
        description = trace(source, Path(traced), python, trusted)
        model = understood(description, checkpoint(folder))
        settled = settle(lambda pins: written(model, pins), read_trials(Path(traced)), description.config)
    imported = settled.imported
    text = longest(imported)
    many = max([text.tokens, *(len(ids) for ids, _ in description.samples)])
    say(f"{source}: compares texts of up to {many} tokens; {size(text.n_bytes)} for their values at a time")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / f"{name}.py"
        file.write_text(imported.text, encoding="utf-8")
        proof = prove(imported, file, folder)
        if not proof.holds:
            raise ArchitectureError(f"{source}: {_wrong(proof, imported.dependence.description)}")
        if weights is not None:
            stored = Path(directory) / "weights.gguf"
            if folder is None:
                n_vocab = int(imported.layers.result.shape[-1])
                keys = None if tokenizer is None else tokenizer_keys(tokenizer, n_vocab)
                write_weights(imported, stored, tokenizer=keys)
            else:
                lines = write_checkpoint(imported, file, folder, stored)
                proof = replace(proof, lines=(*proof.lines, *lines))
                if not proof.holds:
                    raise ArchitectureError(f"{source}: {_wrong(proof, imported.dependence.description)}")
            shutil.copyfile(stored, weights)
    return Done(imported.text, report(imported, proof, source, settled))


def checkpoint(folder: Path | None) -> dict[str, Callable[[], Array]]:
    """Reads of a folder's tensors by name, float32."""
    tensors: dict[str, Callable[[], Array]] = {}
    for path in sorted(folder.glob("*.safetensors")) if folder else ():
        for name, stored in read_safetensors(FileMap(path)).items():
            tensors[name] = lambda path=path, stored=stored: plain(path, stored).numpy().astype(np.float32)  # type: ignore[misc]
    return tensors


def _wrong(proof: Proof, description: TracedModule) -> str:
    """The first thing that disagrees, in one line."""
    for line in proof.lines:
        if line.nmse > LIMIT and line.tokens in description.other_lengths:
            return (
                f"{description.other_lengths[line.tokens]}: the model's Python depends on the length of the "
                f"text: {line.tokens} tokens are computed otherwise than {description.length}"
            )
    for verdict, _ in proof.verdicts:
        if verdict.first is not None:
            return f"the file that was made disagrees with the traced module in {verdict.first.stage.name}"
    worst = max(proof.lines, key=lambda proof_line: proof_line.nmse)
    problem = f"{worst.what}, {worst.tokens} tokens: NMSE {worst.nmse:.1e}, above {LIMIT:g}"
    return f"the file that was made disagrees: {problem}"
