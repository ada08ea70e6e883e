"""Mermaid flowcharts, below the limits of its renderer: a graph beyond them is drawn layer by layer.

Then a run of neighbouring equal layers is one box, and each kind of layer is drawn once beside them.
Knows selections of records; nothing of how they were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from graphml.errors import UsageError
from graphml.inspect.dumps.document import Record
from graphml.inspect.dumps.drawing import COLOURS, by_layer, edges, family_of, what
from graphml.inspect.dumps.layers import layer_hashes
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.dumps.selection import Selection, one_layer

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
