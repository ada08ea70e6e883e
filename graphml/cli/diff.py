"""`graphml diff`: what differs between the graphs of two models, dumps, fusion settings or passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options import dumps, options
from graphml.cli.options.checks import check_target
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import write_file, write_json
from graphml.errors import UsageError
from graphml.inspect.dumps import diff as differences
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.selection import Selection, select
from graphml.inspect.viewer import render

A = Annotated[
    str | None, typer.Argument(metavar="A", help="A model or a dump; by default smollm2.", show_default=False)
]
B = Annotated[
    str | None, typer.Argument(metavar="B", help="The other one; by default A.", show_default=False)
]
FuseA = Annotated[str | None, typer.Option("--fuse-a", metavar="SWITCHES", help="Fusions of A, see --fuse.")]
FuseB = Annotated[str | None, typer.Option("--fuse-b", metavar="SWITCHES", help="Fusions of B, see --fuse.")]
PassA = Annotated[
    str | None, typer.Option("--pass-a", metavar="NAME", help="Pass of A; by default the last.")
]
PassB = Annotated[
    str | None, typer.Option("--pass-b", metavar="NAME", help="Pass of B; by default the last.")
]
Layer = Annotated[int | None, typer.Option("--layer", min=0, help="Compare only this layer.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write an HTML page with both graphs.")
]


@grouped
def diff(
    compiling: options.ComparedGraphs,
    a: A = None,
    b: B = None,
    fuse_a: FuseA = None,
    fuse_b: FuseB = None,
    pass_a: PassA = None,
    pass_b: PassB = None,
    layer: Layer = None,
    tokens: dumps.Tokens = 1,
    json: options.Json = False,
    html: Html = None,
) -> None:
    """Compare two graphs: nodes removed, added, changed. The exit code is 1 if they differ.

    A and B are model files, short names or dumps in JSON or text form.
    """
    if b is None and (fuse_a, pass_a) == (fuse_b, pass_b):
        raise UsageError(
            "diff: wanted B, --fuse-a and --fuse-b, or --pass-a and --pass-b; got one graph alone"
        )
    check_target("--html", html, ".html", ".htm")
    other = a if b is None else b
    switches = [compiling.fuse if fuse is None else fuse for fuse in (fuse_a, fuse_b)]
    left = dumps.document_of(a, tokens, replace(compiling, fuse=switches[0]))
    same = other == a and switches[0] == switches[1]
    right = left if same else dumps.document_of(other, tokens, replace(compiling, fuse=switches[1]))
    in_a, in_b = select(left, pass_a, layer), select(right, pass_b, layer)
    titles = _title(left, in_a, switches[0]), _title(right, in_b, switches[1])
    counted = tuple(
        f"{title} ({len(graph.nodes)} nodes)" for title, graph in zip(titles, (in_a, in_b), strict=True)
    )
    difference = differences.compare(in_a, in_b, (counted[0], counted[1]))
    if html is not None:
        names = _names((a, other), (in_a.name, in_b.name), (switches[0], switches[1]))
        sides = differences.GraphTitles(names[0], titles[0]), differences.GraphTitles(names[1], titles[1])
        page = differences.both(right, in_a, in_b, difference, sides)
        if a != other:
            page["model"] = " and ".join(dict.fromkeys((left["model"], right["model"])))
        if layer is not None:
            page["view"]["layer"] = str(layer)
        write_file(html, render(page), "--html")
    if json:
        write_json(difference.as_dict())
    else:
        print(differences.text(difference), end="")
    if difference:
        raise typer.Exit(1)


def _title(document: Document, selection: Selection, fuse: str) -> str:
    facts = [document["model"]]
    if document["backend"] is not None:
        facts += [
            f"on {document['backend']}",
            f"after {selection.name}",
            *([f"--fuse={fuse}"] if fuse else []),
        ]
    return " ".join(facts)


def _names(
    models: tuple[str | None, str | None], passes: tuple[str, str], switches: tuple[str, str]
) -> tuple[str, str]:
    """What distinguishes the two: the models where they differ, the passes, the fusions."""
    tails = _tails(*(str(model or "").replace("\\", "/").rstrip("/") for model in models))
    names = []
    for tail, name, fuse in zip(tails, passes, switches, strict=True):
        facts = [tail] if models[0] != models[1] else []
        facts.append(name)
        if switches[0] != switches[1]:
            facts.append(f"--fuse={fuse}" if fuse else "all fusions")
        names.append(", ".join(facts))
    return names[0], names[1]


def _tails(a: str, b: str) -> tuple[str, str]:
    """The last parts of two paths that differ: a page need not say where the user keeps what."""
    parts = a.split("/"), b.split("/")
    for count in range(1, max(map(len, parts)) + 1):
        tails = "/".join(parts[0][-count:]), "/".join(parts[1][-count:])
        if tails[0] != tails[1]:
            return tails
    return a, b
