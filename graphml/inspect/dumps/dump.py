"""Dump formats of a graph: text, DOT, GraphML, Model Explorer's JSON, and Mermaid.

Mermaid flowcharts are kept below the limits of its renderer: a graph beyond them is drawn layer by layer.
Then a run of neighbouring equal layers is one box, and each kind of layer is drawn once beside them. Knows
selections of records; nothing of how they were made.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from graphml.errors import UsageError
from graphml.inspect.dumps.document import Document, Record
from graphml.inspect.dumps.layers import layer_hashes
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.dumps.records import graph_of
from graphml.inspect.dumps.selection import Selection, one_layer
from graphml.ir.text import write
from graphml.passes.fusion import all_ops

COLOURS = {
    "leaf": "#eceff1",
    "linear": "#bbdefb",
    "attention": "#d1c4e9",
    "norm": "#c8e6c9",
    "elementwise": "#fff3c4",
    "fused": "#ffd5c2",
    "position": "#b2dfdb",
    "index": "#f8d7e3",
}
OTHER = "#ffffff"


def by_layer(selection: Selection) -> Iterator[tuple[int | None, list[Record]]]:
    """The nodes of each layer, in the order in which layers begin; those of no layer first."""
    first = {layer: i for i, layer in enumerate(dict.fromkeys(node["layer"] for node in selection.nodes))}
    ordered = sorted(selection.nodes, key=lambda node: (node["layer"] is not None, first[node["layer"]]))
    for layer, nodes in groupby(ordered, lambda node: node["layer"]):
        yield layer, list(nodes)


def edges(selection: Selection) -> Iterator[tuple[str, Record, int]]:
    """Source, reader and the operand's number."""
    for node in selection.nodes:
        for operand, source in enumerate(node["inputs"]):
            yield source, node, operand


def family_of(node: Record) -> str:
    """The family of a node's op, which determines its colour."""
    op = all_ops().get(node["op"])
    return str(node.get("family") or (op.family if op else "other"))


def shape_of(node: Record) -> str:
    """A node's shape as text."""
    return "[" + ", ".join(map(str, node["shape"])) + "]"


def what(node: Record) -> str:
    """Op, dtype and shape of a node."""
    return f"{node['op']} {node['dtype']}{shape_of(node)}"


CHARACTERS, EDGES = 50_000, 500  # the renderer's maxTextSize and maxEdges
_MOST_OPS = 4  # in a box of layers
_Run = Sequence[int]


def mermaid(selection: Selection) -> str:
    """A flowchart of all nodes, else of layers; a graph that is too large even so is a `UsageError`."""
    whole = _Chart()
    whole.nodes(selection, "n")
    whole.edges((f"n{source}", f"n{reader}") for source, reader in _numbered(selection))
    if whole.fits:
        return whole.text()
    runs = _runs(selection)
    if sum(len(layers) for _, layers in runs) > 1 or selection.collapsed:
        for detailed in (True, False):
            chart = _of_layers(selection, runs, detailed)
            if chart.fits:
                return chart.text()
    raise UsageError(
        f"--format mermaid: its renderer takes at most {EDGES} edges and {CHARACTERS} characters; this graph "
        f"has {whole.n_edges} and {len(whole.text())}: use --collapse, --layer N or another format"
    )


class _Chart:
    """The lines of a flowchart: nodes first, then the colours of their families, then edges."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._edges: list[str] = []
        self._families: dict[str, list[str]] = {}

    @property
    def n_edges(self) -> int:
        return len(self._edges)

    @property
    def fits(self) -> bool:
        """Whether the chart is within the renderer's limits."""
        return self.n_edges <= EDGES and len(self.text()) <= CHARACTERS

    def box(self, name: str, label: Iterable[str], family: str = "") -> None:
        """A node with the lines of its label."""
        written = "<br/>".join(map(_escaped, label))
        self._lines.append(f'  {name}["{written}"]')
        if family in COLOURS:
            self._families.setdefault(family, []).append(name)

    def nodes(self, selection: Selection, prefix: str) -> None:
        """Add all nodes, those of a layer in a frame; their names are the prefix and their number."""
        numbers = {node["name"]: i for i, node in enumerate(selection.nodes)}
        for layer, members in by_layer(selection):
            if layer is not None:
                self.begin(f"layer{layer}", selection.title(layer))
            for node in members:
                label = printable(node["name"]), what(node)
                self.box(f"{prefix}{numbers[node['name']]}", label, family_of(node))
            if layer is not None:
                self.end()

    def begin(self, name: str, title: str) -> None:
        """Begin a frame."""
        self._lines.append(f'  subgraph {name} ["{_escaped(title)}"]')

    def end(self) -> None:
        """End a frame."""
        self._lines.append("  end")

    def edges(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Arrows from boxes to boxes."""
        self._edges += [f"  {source} --> {reader}" for source, reader in pairs]

    def text(self) -> str:
        """The flowchart."""
        colours: list[str] = []
        for family, colour in COLOURS.items():
            if family in self._families:
                colours.append(f"  classDef {family} fill:{colour},stroke:#90a4ae,color:#212121")
                colours.append(f"  class {','.join(self._families[family])} {family}")
        return "\n".join(["flowchart TD", *self._lines, *colours, *self._edges]) + "\n"


def _numbered(selection: Selection) -> list[tuple[int, int]]:
    numbers = {node["name"]: i for i, node in enumerate(selection.nodes)}
    return [(numbers[source], numbers[node["name"]]) for source, node, _ in edges(selection)]


def _runs(selection: Selection) -> list[tuple[str, _Run]]:
    """Runs of neighbouring equal layers, each with the name of its kind: A, B, ..."""
    computing = {node["layer"] for node in selection.nodes if family_of(node) != "leaf"}
    hashes = {layer: digest for layer, digest in layer_hashes(selection.nodes).items() if layer in computing}
    kinds = {digest: _letters(i) for i, digest in enumerate(dict.fromkeys(hashes[n] for n in sorted(hashes)))}
    grouped = groupby(sorted(hashes), lambda layer: kinds[hashes[layer]])
    return [(kind, list(layers)) for kind, layers in grouped]


def _letters(i: int) -> str:
    """A to Z, then AA, AB, ..."""
    return (_letters(i // 26 - 1) if i >= 26 else "") + chr(ord("A") + i % 26)


def _of_layers(selection: Selection, runs: Sequence[tuple[str, _Run]], detailed: bool) -> _Chart:
    """A box for each run and the nodes of no layer around them; detailed: with each kind of layer beside."""
    chart = _Chart()
    box_of = {layer: f"layers{layers[0]}" for _, layers in runs for layer in layers}
    outside = [node for node in selection.nodes if node["layer"] not in box_of]
    named = {node["name"]: f"n{i}" for i, node in enumerate(outside)}
    arrows = _between(selection, named, box_of)
    joined = {box for arrow in arrows for box in arrow}
    for node in outside:
        if named[node["name"]] in joined:
            chart.box(named[node["name"]], (printable(node["name"]), what(node)), family_of(node))
    for kind, layers in runs:
        members = [node for node in selection.nodes if node["layer"] == layers[0]]
        chart.box(box_of[layers[0]], (_title(selection, layers), f"kind {kind}: {_ops(members)}"))
    chart.edges(arrows)
    if detailed:
        for kind in dict.fromkeys(kind for kind, _ in runs):
            _draw_kind(chart, selection, kind, [layers for run_kind, layers in runs if run_kind == kind])
    return chart


def _title(selection: Selection, layers: _Run) -> str:
    """The heading of a run; a layer of a selection may represent others itself."""
    first = selection.collapsed.get(layers[0], layers[:1])
    every = [*first, *(number for layer in layers[1:] for number in selection.collapsed.get(layer, (layer,)))]
    return replace(selection, collapsed={layers[0]: every}).title(layers[0])


def _ops(members: Sequence[Record]) -> str:
    """The number of nodes that a layer computes, and their most frequent ops."""
    counts = Counter(node["op"] for node in members if family_of(node) != "leaf")
    shown = [f"{count} {op}" for op, count in counts.most_common(_MOST_OPS)]
    more = ["..."] if len(counts) > _MOST_OPS else []
    return f"{counts.total()} nodes ({', '.join([*shown, *more])})"


def _between(
    selection: Selection, named: Mapping[str, str], box_of: Mapping[int, str]
) -> Mapping[tuple[str, str], None]:
    """The arrows between boxes, each once.

    Weights and inputs that layers read are omitted, and parts of a fused node of an earlier layer.
    """
    layer_of = {node["name"]: node["layer"] for node in selection.nodes}
    of = {node["name"]: named.get(node["name"]) or box_of[node["layer"]] for node in selection.nodes}
    leaves = {node["name"] for node in selection.nodes if family_of(node) == "leaf"}
    arrows: dict[tuple[str, str], None] = {}
    for source, reader, _ in edges(selection):
        inside = reader["layer"] in box_of
        if inside and (
            source in leaves or (layer_of[source] in box_of and layer_of[source] > reader["layer"])
        ):
            continue
        if of[source] != of[reader["name"]]:
            arrows[of[source], of[reader["name"]]] = None
    return arrows


def _draw_kind(chart: _Chart, selection: Selection, kind: str, runs: Sequence[_Run]) -> None:
    """The first layer of a kind with all its nodes and inputs, in a frame."""
    shown = one_layer(selection, runs[0][0])
    flat = replace(shown, nodes=[{**node, "layer": None} for node in shown.nodes])
    chart.begin(f"kind{kind}", f"kind {kind}: {', '.join(_title(selection, run) for run in runs)}")
    chart.nodes(flat, f"{kind.lower()}_")
    chart.end()
    chart.edges((f"{kind.lower()}_{a}", f"{kind.lower()}_{b}") for a, b in _numbered(flat))


def _escaped(name: str) -> str:
    """The name with Mermaid's special characters as its entities."""
    return "".join(char if char.isalnum() or char in " ._-=,()[]/" else f"#{ord(char)};" for char in name)


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
    return {**document, "passes": passes, "collapsed": _shown_runs(document, selections)}


def _shown_runs(document: Document, selections: Mapping[str, Selection]) -> list[Record]:
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
