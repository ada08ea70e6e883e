"""`graphml diff`: what differs between the graphs of two models, dumps, fusion settings or passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from graphml.app import dumps, options
from graphml.app.console import write_file, write_json
from graphml.app.groups import grouped
from graphml.errors import UsageError
from graphml.inspect import diff as differences
from graphml.inspect.document import Document
from graphml.inspect.selection import Selection, select
from graphml.inspect.viewer import render

A = Annotated[
    str | None, typer.Argument(metavar="A", help="A model or a dump; by default smollm2.", show_default=False)
]
B = Annotated[
    str | None, typer.Argument(metavar="B", help="The other one; by default A.", show_default=False)
]
FuseA = Annotated[
    str | None, typer.Option("--fuse-a", metavar="SWITCHES", help="Fusions of A, as --fuse has them.")
]
FuseB = Annotated[
    str | None, typer.Option("--fuse-b", metavar="SWITCHES", help="Fusions of B, as --fuse has them.")
]
PassA = Annotated[str | None, typer.Option("--pass-a", metavar="NAME", help="Which pass of A; the last.")]
PassB = Annotated[str | None, typer.Option("--pass-b", metavar="NAME", help="Which pass of B; the last.")]
Layer = Annotated[int | None, typer.Option("--layer", min=0, help="Compare this layer alone.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write both graphs to one page.")
]


@grouped
def diff(
    compiling: options.Compiling,
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
    """Show which nodes two graphs do not share: removed, added, changed. The exit code is 1 if they differ.

    A and B are model files, short names or dumps in JSON or text form.
    """
    if b is None and (fuse_a, pass_a) == (fuse_b, pass_b):
        raise UsageError(
            "diff: wanted B, --fuse-a and --fuse-b, or --pass-a and --pass-b; got one graph alone"
        )
    other = a if b is None else b
    switches = [compiling.fuse if one is None else one for one in (fuse_a, fuse_b)]
    left = dumps.document_of(a, tokens, replace(compiling, fuse=switches[0]))
    same = other == a and switches[0] == switches[1]
    right = left if same else dumps.document_of(other, tokens, replace(compiling, fuse=switches[1]))
    in_a, in_b = select(left, pass_a, layer), select(right, pass_b, layer)
    titles = _title(left, in_a, switches[0]), _title(right, in_b, switches[1])
    found = differences.compare(in_a, in_b, titles)
    if html is not None:
        write_file(html, render(differences.both(right, in_a, in_b)), "--html")
    if json:
        write_json(found.as_dict())
    else:
        print(differences.text(found), end="")
    if found:
        raise typer.Exit(1)


def _title(document: Document, selection: Selection, fuse: str) -> str:
    facts = [document["model"]]
    if document["backend"] is not None:
        facts += [
            f"on {document['backend']}",
            f"after {selection.name}",
            *([f"--fuse={fuse}"] if fuse else []),
        ]
    return f"{' '.join(facts)} ({len(selection.nodes)} nodes)"
