"""`graphml explain`: where a node came from, what it became, and where it is computed and stored."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from graphml.cli.options import dumps, options
from graphml.cli.options.opening import model_and_word
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import remark, write_json
from graphml.errors import UsageError
from graphml.inspect.dumps import explain as explanations
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.selection import select

_NODE = re.compile(r"(?:layers|blk|cache)\.\d+(?:\.[\w.]+)?|(?:[QKV]cur|[a-z]+_[a-z_]+)-\d+")
"""What names a node, as here, in GGUF or in llama.cpp, and hardly a model."""
NodeName = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="NAME", help="Name of the node, such as layers.3.up; without it, names are listed."
    ),
]


@grouped
def explain(
    compiling: options.Compiling,
    model: options.Model = None,
    word: Annotated[
        str | None, typer.Argument(metavar="NODE", help="The node, in place of --node.", show_default=False)
    ] = None,
    node: NodeName = None,
    tokens: dumps.Tokens = 1,
    json: options.Json = False,
) -> None:
    """Explain a node: source line, passes, fusions applied or refused, backend, buffer, readers.

    Without NODE it lists the names of nodes, on a terminal those of equal layers once.
    MODEL may be a dump. Of a model file the header is read only.
    """
    if word is None and node is None and model is not None and _NODE.fullmatch(model):
        model, word = None, model  # of the default model
    model, word = model_and_word(model, word, compiling)
    if word is not None and node is not None:
        raise UsageError(f"--node: wanted one node; got {word!r:.80} and {node!r:.80}")
    node = node if word is None else word
    document = dumps.document_of(model, tokens, compiling)
    if node is None:
        _list(document, json)
        return
    explanation = explanations.explain(document, node, "node" if word is None else "NODE")
    if json:
        write_json(explanation)
    else:
        print(explanations.text(explanation), end="")


def _list(document: Document, as_json: bool) -> None:
    """The names of nodes as the architecture makes them, whom fusions may have taken since."""
    first = document["passes"][0]["name"]
    nodes = select(document, first, collapse=sys.stdout.isatty() and not as_json).nodes
    if as_json:
        write_json({"model": document["model"], "nodes": [node["name"] for node in nodes]})
        return
    for node in nodes:
        print(node["name"])
    remark(f"`graphml explain MODEL {nodes[-1]['name']}` explains one")
