"""Dump formats of a graph: text, DOT, GraphML, Model Explorer's JSON, and Mermaid (`mermaid`).

Knows selections of records; nothing of how they were made.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from graphml.inspect.dumps.document import Document, Record
from graphml.inspect.dumps.drawing import COLOURS, OTHER, by_layer, edges, family_of, shape_of, what
from graphml.inspect.dumps.mermaid import mermaid
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.dumps.records import graph_of
from graphml.inspect.dumps.selection import Selection
from graphml.ir.text import write


def text(selection: Selection) -> str:
    """The text form, which parses back. Layers that represent others have a heading that begins with #."""
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
    for layer, nodes in by_layer(selection):
        drawn = [
            f"{_quoted(printable(node['name']))} "
            f'[label={_label(node)}, fillcolor="{COLOURS.get(family_of(node), OTHER)}"]'
            for node in nodes
        ]
        if layer is not None:
            title = _quoted(selection.title(layer))
            drawn = [f"subgraph cluster_layer_{layer} {{", f"  label={title}", '  color="#90a4ae"',
                     *(f"  {line}" for line in drawn), "}"]  # fmt: skip
        lines.extend(f"  {line}" for line in drawn)
    lines.extend(
        f"  {_quoted(printable(source))} -> {_quoted(printable(node['name']))}"
        for source, node, _ in edges(selection)
    )
    return "\n".join([*lines, "}"]) + "\n"


def graphml_xml(selection: Selection) -> str:
    """GraphML with typed attributes, for yEd, Gephi, Cytoscape or networkx."""
    import networkx as nx  # 0.1 s that the other forms do not need

    graph = nx.MultiDiGraph(name=selection.name)
    for node in selection.nodes:
        facts: dict[str, Any] = {
            "label": printable(node["name"]),
            "op": node["op"],
            "family": family_of(node),
            "dtype": node["dtype"],
            "shape": shape_of(node),
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
    for source, node, operand in edges(selection):
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
            {"id": "0", "attrs": [{"key": "tensor_shape", "value": f"{node['dtype']}{shape_of(node)}"}]}
        ],
    }


def narrowed(document: Document, selections: Mapping[str, Selection]) -> Document:
    """The document with the selected passes and nodes only."""
    passes = [
        {**pass_, "nodes": list(selection.nodes), "outputs": dict(selection.outputs)}
        for pass_ in document["passes"]
        if (selection := selections.get(pass_["name"])) is not None
    ]
    return {**document, "passes": passes, "collapsed": _runs(document, selections)}


def _runs(document: Document, selections: Mapping[str, Selection]) -> list[Record]:
    """The runs of equal layers that the shown nodes represent."""
    shown = {node["layer"] for selection in selections.values() for node in selection.nodes} - {None}
    known = {run["first"]: run for run in document["collapsed"]}
    drawn = {first: run for selection in selections.values() for first, run in selection.collapsed.items()}
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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '\\"') + '"'


def _label(node: Record) -> str:
    name = printable(node["name"]).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}\\n{what(node)}"'
