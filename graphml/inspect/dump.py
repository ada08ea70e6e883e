"""The forms that a graph is written in: text, JSON, DOT, Mermaid, GraphML and Model Explorer's JSON.

Knows selections of records; nothing of how they came about.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from graphml.errors import UsageError
from graphml.inspect.document import Document, Record
from graphml.inspect.names import printable
from graphml.inspect.records import graph_of
from graphml.inspect.selection import Selection
from graphml.ir.text import write
from graphml.passes.fusion import all_ops

MERMAID_CHARACTERS, MERMAID_EDGES = 50_000, 500  # maxTextSize and maxEdges, as its renderer has them
_COLOURS = {
    "leaf": "#eceff1",
    "linear": "#bbdefb",
    "attention": "#d1c4e9",
    "norm": "#c8e6c9",
    "elementwise": "#fff3c4",
    "fused": "#ffd5c2",
    "position": "#b2dfdb",
    "index": "#f8d7e3",
}
_OTHER = "#ffffff"


def text(selection: Selection) -> str:
    """The text form, which parses back. Where layers stand for others, lines that begin with # head them."""
    written = write(graph_of(selection.nodes, selection.outputs))
    if not selection.collapsed:
        return written
    lines = [f"# {note}" for note in selection.notes()]
    headed: set[int] = set()
    nodes = iter(selection.nodes)
    for line in written.removesuffix("\n").split("\n"):
        layer = next(nodes)["layer"] if line.startswith("%") else None
        if layer is not None and layer not in headed:
            lines.append(f"# {selection.title(layer)}")
            headed.add(layer)
        lines.append(line)
    return "\n".join(lines) + "\n"


def dot(selection: Selection) -> str:
    """A Graphviz drawing, each layer in a box."""
    lines = [
        f"digraph {_quoted(selection.name)} {{",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10]',
        '  edge [color="#607d8b", arrowsize=0.6]',
    ]
    for layer, nodes in _by_layer(selection):
        drawn = [
            f"{_quoted(printable(node['name']))} "
            f'[label={_label(node)}, fillcolor="{_COLOURS.get(_family(node), _OTHER)}"]'
            for node in nodes
        ]
        if layer is not None:
            title = _quoted(selection.title(layer))
            drawn = [f"subgraph cluster_layer_{layer} {{", f"  label={title}", '  color="#90a4ae"',
                     *(f"  {line}" for line in drawn), "}"]  # fmt: skip
        lines.extend(f"  {line}" for line in drawn)
    lines.extend(
        f"  {_quoted(printable(source))} -> {_quoted(printable(node['name']))}"
        for source, node, _ in _edges(selection)
    )
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(selection: Selection) -> str:
    """A Mermaid flowchart, below the limits of its renderer; a graph beyond them is a `UsageError`."""
    names = {node["name"]: f"n{i}" for i, node in enumerate(selection.nodes)}
    lines = ["flowchart TD"]
    for layer, nodes in _by_layer(selection):
        if layer is not None:
            lines.append(f'  subgraph layer{layer} ["{_mermaid(selection.title(layer))}"]')
        lines.extend(
            f'  {names[node["name"]]}["{_mermaid(printable(node["name"]))}<br/>{_mermaid(_what(node))}"]'
            for node in nodes
        )
        if layer is not None:
            lines.append("  end")
    edges = [f"  {names[source]} --> {names[node['name']]}" for source, node, _ in _edges(selection)]
    for family, colour in _COLOURS.items():
        members = [names[node["name"]] for node in selection.nodes if _family(node) == family]
        if members:
            lines.append(f"  classDef {family} fill:{colour},stroke:#90a4ae,color:#212121")
            lines.append(f"  class {','.join(members)} {family}")
    drawn = "\n".join([*lines, *edges]) + "\n"
    if len(edges) > MERMAID_EDGES or len(drawn) > MERMAID_CHARACTERS:
        raise UsageError(
            f"--format mermaid: its renderer takes at most {MERMAID_EDGES} edges and {MERMAID_CHARACTERS} "
            f"characters; this graph has {len(edges)} and {len(drawn)}: use --collapse, --layer N or another "
            "format"
        )
    return drawn


def graphml_xml(selection: Selection) -> str:
    """GraphML with typed attributes, for yEd, Gephi, Cytoscape or networkx."""
    import networkx as nx  # 0.1 s that the other forms do not need

    graph = nx.MultiDiGraph(name=selection.name)
    for node in selection.nodes:
        facts: dict[str, Any] = {
            "label": printable(node["name"]),
            "op": node["op"],
            "family": _family(node),
            "dtype": node["dtype"],
            "shape": _shape(node),
            "attributes": printable(json.dumps(node["attributes"])),
            "origin": printable(", ".join(node["origin"])),
            "bytes": node["bytes"],
            "source": printable(node["source"] or ""),
            "output": node["name"] in selection.outputs.values(),
        }
        if node["layer"] is not None:
            facts["layer"] = node["layer"]
            facts["stands_for_layers"] = len(selection.collapsed.get(node["layer"], (0,)))
        if node["backend"] is not None:
            facts |= {"backend": node["backend"], "fallback": node["fallback"] or ""}
        if node["buffer"] is not None:
            facts |= {"offset": node["buffer"]["offset"], "size": node["buffer"]["size"]}
        graph.add_node(printable(node["name"]), **facts)
    for source, node, operand in _edges(selection):
        graph.add_edge(printable(source), printable(node["name"]), operand=operand)
    written = io.BytesIO()
    nx.write_graphml_xml(graph, written, named_key_ids=True)
    return written.getvalue().decode("utf-8") + "\n"


def model_explorer(selections: Mapping[str, Selection], label: str) -> dict[str, Any]:
    """The JSON that Model Explorer opens: a graph per pass, with a namespace per layer."""
    return {"label": label, "graphs": [_explorer_graph(selection) for selection in selections.values()]}


def _explorer_graph(selection: Selection) -> dict[str, Any]:
    return {"id": selection.name, "nodes": [_explorer_node(selection, node) for node in selection.nodes]}


def _explorer_node(selection: Selection, node: Record) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": node["name"],
        "bytes": node["bytes"],
        "source": node["source"],
        "origin": ", ".join(node["origin"]),
        "backend": node["backend"],
        "fallback": node["fallback"],
        **node["attributes"],
    }
    known = {name: value for name, value in facts.items() if value not in (None, "")}
    return {
        "id": printable(node["name"]),
        "label": node["op"],
        "namespace": "" if node["layer"] is None else selection.title(node["layer"]),
        "attrs": [{"key": name, "value": printable(str(value))} for name, value in known.items()],
        "incomingEdges": [
            {"sourceNodeId": printable(source), "sourceNodeOutputId": "0", "targetNodeInputId": str(operand)}
            for operand, source in enumerate(node["inputs"])
        ],
        "outputsMetadata": [
            {"id": "0", "attrs": [{"key": "tensor_shape", "value": f"{node['dtype']}{_shape(node)}"}]}
        ],
    }


def narrowed(document: Document, selections: Mapping[str, Selection]) -> Document:
    """The document with the selected passes and nodes only."""
    passes = [
        {**found, "nodes": list(selection.nodes), "outputs": dict(selection.outputs)}
        for found in document["passes"]
        if (selection := selections.get(found["name"])) is not None
    ]
    return {**document, "passes": passes, "collapsed": _runs(document, selections)}


def _runs(document: Document, selections: Mapping[str, Selection]) -> list[Record]:
    """The runs of equal layers that the nodes shown stand for."""
    shown = {node["layer"] for selection in selections.values() for node in selection.nodes} - {None}
    known = {run["first"]: run for run in document["collapsed"]}
    drawn = {first: run for one in selections.values() for first, run in one.collapsed.items()}
    if drawn:
        return [{"hash": "", **known.get(f, {}), "first": f, "layers": list(run)} for f, run in drawn.items()]
    return document["collapsed"] if len(shown) > 1 else []


DRAWINGS: Mapping[str, Callable[[Selection], str]] = {
    "text": text,
    "dot": dot,
    "mermaid": mermaid,
    "graphml": graphml_xml,
}
"""The formats that show one pass."""


def _by_layer(selection: Selection) -> Iterator[tuple[int | None, list[Record]]]:
    """The nodes of each layer together, in the order in which layers begin; those of none first."""
    first = {layer: i for i, layer in enumerate(dict.fromkeys(node["layer"] for node in selection.nodes))}
    ordered = sorted(selection.nodes, key=lambda node: (node["layer"] is not None, first[node["layer"]]))
    for layer, nodes in groupby(ordered, lambda node: node["layer"]):
        yield layer, list(nodes)


def _edges(selection: Selection) -> Iterator[tuple[str, Record, int]]:
    """Source, reader and the operand's number."""
    for node in selection.nodes:
        for operand, source in enumerate(node["inputs"]):
            yield source, node, operand


def _family(node: Record) -> str:
    op = all_ops().get(node["op"])
    return op.family if op else "other"


def _shape(node: Record) -> str:
    return "[" + ", ".join(map(str, node["shape"])) + "]"


def _what(node: Record) -> str:
    return f"{node['op']} {node['dtype']}{_shape(node)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '\\"') + '"'


def _label(node: Record) -> str:
    name = printable(node["name"]).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}\\n{_what(node)}"'


def _mermaid(name: str) -> str:
    """With the characters that mean something to Mermaid as its entities."""
    return "".join(char if char.isalnum() or char in " ._-=,()[]/" else f"#{ord(char)};" for char in name)
