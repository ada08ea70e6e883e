"""Selection of the shown part of a document: one pass, one layer, or all with repeated layers once.

Knows plain records. Records of a selection are again a graph that can be run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphml.errors import UsageError
from graphml.inspect.dumps.document import Document, Record
from graphml.inspect.dumps.layers import renumbered, repeated_layers


@dataclass(frozen=True)
class Selection:
    """Nodes of one pass, its outputs (name -> node), and the layers that each shown layer represents."""

    name: str
    nodes: Sequence[Record]
    outputs: Mapping[str, str]
    collapsed: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def title(self, layer: int) -> str:
        """The heading of a layer: `layers 0 to 28 (x 29)`, `layers 0 to 27, every 3rd (x 10)`."""
        same = self.collapsed.get(layer, (layer,))
        if len(same) == 1:
            return f"layer {layer}"
        period = same[1] - same[0]
        every = "" if period == 1 else f", every {period}{ {2: 'nd', 3: 'rd'}.get(period, 'th') }"
        return f"layers {same[0]} to {same[-1]}{every} (x {len(same)})"

    def notes(self) -> list[str]:
        """Remarks for the reader about layers that are not shown."""
        return [f"{self.title(layer)}: equal, shown is layer {layer}" for layer in self.collapsed]


def select(
    document: Document, name: str | None = None, layer: int | None = None, collapse: bool = False
) -> Selection:
    """The nodes of a pass (None: the last): all, of one layer, or with equal neighbouring layers once."""
    pass_ = _pass(document, name)
    whole = Selection(pass_["name"], pass_["nodes"], pass_["outputs"])
    if layer is not None:
        return one_layer(whole, layer)
    return _collapsed(whole) if collapse else whole


def _pass(document: Document, name: str | None) -> Mapping[str, Any]:
    passes: dict[str, Mapping[str, Any]] = {pass_["name"]: pass_ for pass_ in document["passes"]}
    if name is None:
        return passes[list(passes)[-1]]
    if name not in passes:
        raise UsageError(f"pass: wanted one of {', '.join(passes)}; got {name!r}")
    return passes[name]


def one_layer(whole: Selection, layer: int) -> Selection:
    """The layer; values from other layers are inputs, and values read elsewhere are outputs."""
    layers = sorted({node["layer"] for node in whole.nodes if node["layer"] is not None})
    if layer not in layers:
        known = f"wanted {layers[0]} to {layers[-1]}" if layers else "the graph has no layers"
        raise UsageError(f"layer: {known}; got {layer}")
    inside = {node["name"] for node in whole.nodes if node["layer"] == layer}
    wanted = {name for node in whole.nodes if node["name"] in inside for name in node["inputs"]} - inside
    nodes = [
        node if node["name"] in inside else _boundary(node)
        for node in whole.nodes
        if node["name"] in inside or node["name"] in wanted
    ]
    read = {name for node in whole.nodes if node["name"] not in inside for name in node["inputs"]}
    outputs = {name: name for name in sorted(read & inside)}
    outputs |= {output: name for output, name in whole.outputs.items() if name in inside}
    return Selection(whole.name, nodes, outputs)


def _boundary(node: Record) -> Record:
    """A value from outside as a leaf; the leaves of the graph are unchanged."""
    return {**node, "op": "input", "inputs": [], "attributes": {}} if node["inputs"] else node


def _collapsed(whole: Selection) -> Selection:
    """Only the first layer of each repeated kind; readers of the others read it instead."""
    runs = repeated_layers(whole.nodes)
    stands_for = {layer: first for first, layers in runs.items() for layer in layers[1:]}
    names = {
        node["name"]: renumbered(node["name"], node["layer"], stands_for[node["layer"]])
        for node in whole.nodes
        if node["layer"] in stands_for
    }
    nodes = [
        {**node, "inputs": [names.get(name, name) for name in node["inputs"]]}
        for node in whole.nodes
        if node["layer"] not in stands_for
    ]
    outputs = {output: names.get(name, name) for output, name in whole.outputs.items()}
    return Selection(whole.name, nodes, outputs, runs)
