"""`graphml explain`: where a node came from, what it became, and where it is computed and stored."""

from __future__ import annotations

from typing import Annotated

import typer

from graphml.cli.options import dumps, options
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import write_json
from graphml.inspect.dumps import explain as explanations

NodeName = Annotated[
    str, typer.Option("--node", metavar="NAME", help="Name of the node, such as layers.3.up.")
]


@grouped
def explain(
    compiling: options.Compiling,
    node: NodeName,
    model: options.Model = None,
    tokens: dumps.Tokens = 1,
    json: options.Json = False,
) -> None:
    """Explain a node: source line, passes, fusions applied or refused, backend, buffer, readers.

    MODEL may be a dump. Of a model file the header is read only.
    """
    document = dumps.document_of(model, tokens, compiling)
    explanation = explanations.explain(document, node)
    if json:
        write_json(explanation)
    else:
        print(explanations.text(explanation), end="")
