"""`graphml graph`: the graph of a model after any pass, in a form to read, draw or hand to another tool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options import dumps, options
from graphml.cli.options.typer_options import beginning_with, grouped
from graphml.cli.terminal.console import remark
from graphml.errors import UsageError
from graphml.inspect.dumps import dump
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.selection import Selection, select
from graphml.inspect.viewer import render

LARGE = 200
"""Nodes beyond which nobody reads all of a graph on a terminal."""
BULK = ("graphml", "json", "model-explorer", "html")
"""Formats for other programs, which a terminal never gets."""
FORMATS = (*dump.DRAWINGS, "json", "model-explorer", "html")
ENDINGS = {
    ".txt": ("text",), ".dot": ("dot",), ".gv": ("dot",), ".mmd": ("mermaid",), ".mermaid": ("mermaid",),
    ".graphml": ("graphml",), ".json": ("json", "model-explorer"), ".html": ("html",), ".htm": ("html",),
    ".svg": (), ".png": (), ".pdf": (),
}  # fmt: skip
"""The ending of a file's name -> the formats that it may have, the first without --format; none: not ours."""

Pass = Annotated[
    str | None, typer.Option("--pass", metavar="NAME", help="Graph after this pass; by default the last.")
]
Layer = Annotated[int | None, typer.Option("--layer", min=0, help="Only this layer.")]
Collapse = Annotated[
    bool | None,
    typer.Option(
        "--collapse/--no-collapse",
        help="Print equal layers once; default for large graphs as text on a terminal.",
        show_default=False,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", "-f", show_default="by the ending of --output, else text",
        help=f"One of {', '.join(FORMATS)}.", autocompletion=beginning_with(FORMATS),
    ),
]  # fmt: skip


@grouped
def graph(
    compiling: options.Compiling,
    model: options.Model = None,
    pass_name: Pass = None,
    layer: Layer = None,
    collapse: Collapse = None,
    tokens: dumps.Tokens = 1,
    format: Format = None,
    output: dumps.Output = None,
) -> None:
    """Write a model's graph after a pass as text, DOT, Mermaid, GraphML, JSON or HTML.

    MODEL may be a dump in JSON or text form. Of a model file the header is read only.
    """
    format = _format(format, output)
    if format in BULK and output is None and sys.stdout.isatty():
        raise UsageError(f"--format {format}: wanted -o FILE, or a pipe; it is nothing to read at a terminal")
    if layer is not None and collapse:
        raise UsageError("--layer, --collapse: wanted one of them; got both")
    document = dumps.document_of(model, tokens, compiling)
    if format not in dump.DRAWINGS:
        drawn = _whole(document, pass_name, layer, bool(collapse), format)
    else:
        chosen = select(document, pass_name, layer, bool(collapse))
        if collapse is None and layer is None and format == "text" and output is None:
            chosen = _readable(document, chosen)
        drawn = dump.DRAWINGS[format](chosen)
    dumps.write_out(drawn, output)


def _format(format: str | None, output: Path | None) -> str:
    """The format that is asked for, else that of the file's ending; UsageError where they contradict."""
    if format is not None and format not in FORMATS:
        raise UsageError(f"--format: wanted one of {', '.join(FORMATS)}; got {format!r}")
    if output is None or output.suffix.lower() not in ENDINGS:
        return format or "text"
    fitting = ENDINGS[output.suffix.lower()]
    if not fitting:
        kind = output.suffix.lower()[1:]
        raise UsageError(
            f"--output {output}: wanted a format of --format; Graphviz draws {kind}: "
            f"`graphml graph MODEL -f dot | dot -T{kind} -o {output}`"
        )
    if format is not None and format not in fitting:
        raise UsageError(f"--format {format}, --output {output}: a file of that ending has {fitting[0]}")
    return format or fitting[0]


def _readable(document: Document, whole: Selection) -> Selection:
    """On a terminal a large graph with its alike layers once; a file and a pipe get all."""
    if not sys.stdout.isatty() or len(whole.nodes) <= LARGE:
        return whole
    folded = select(document, whole.name, collapse=True)
    if folded.collapsed:
        shown = f"{len(folded.nodes)} of {len(whole.nodes)} nodes"
        remark(f"{shown}: layers that are alike are shown once; --no-collapse shows all")
    return folded


def _whole(document: Document, pass_name: str | None, layer: int | None, collapse: bool, format: str) -> str:
    """The formats that hold every pass. `--pass` leaves one; the viewer has all and opens that one."""
    page = format == "html"
    selected = select(document, pass_name).name
    names = (
        [graph_pass["name"] for graph_pass in document["passes"]]
        if pass_name is None or page
        else [pass_name]
    )
    collapse = collapse and not page  # the viewer does so itself, and opens layers again
    selections: dict[str, Selection] = {name: select(document, name, layer, collapse) for name in names}
    if format == "model-explorer":
        return json.dumps(dump.model_explorer(selections, document["model"])) + "\n"
    narrowed = dump.narrowed(document, selections)
    if format == "json":
        return json.dumps(narrowed, allow_nan=False) + "\n"
    view = {"pass": selected} if layer is None else {"pass": selected, "layer": str(layer)}
    return render({**narrowed, "view": view})
