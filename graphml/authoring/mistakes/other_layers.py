"""Mistakes of a whole layer: its tensors, its window or its table of rope are those of another layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphml.authoring.mistakes.edit import EditSource, Mistake, Try, changed, leaf, tensor_of
from graphml.inspect.dumps.layers import layer_of, renumbered
from graphml.ir.node import Node
from graphml.ir.op import number

PERIODS = (2, 3, 4, 5, 6, 8)
Source = Callable[[int], int]  # of a layer, the layer whose value it should have


def others(n_layer: int) -> Iterator[tuple[str, Source]]:
    """Layers whose value a layer may have got by mistake, in words."""
    yield "of the next layer", lambda layer: (layer + 1) % n_layer
    yield "of the layer before", lambda layer: (layer - 1) % n_layer
    yield "of the layer as far from the other end", lambda layer: n_layer - 1 - layer


def _reordered(model: EditSource) -> Iterator[Try]:
    """Tensors of another layer -> of the own."""

    def change(node: Node) -> Node | None:
        own, inputs = layer_of(node.name), list(node.inputs)
        for i, source in enumerate(node.inputs):
            name = tensor_of(source) if node.op.name != "dequantize" else None
            layer = layer_of(name) if name is not None else None
            if name is None or layer is None or own is None or layer == own:
                continue
            wanted = renumbered(name, layer, own)
            if wanted not in model.tensors or model.tensors[wanted].shape != model.tensors[name].shape:
                return None
            inputs[i] = leaf(model, wanted)
        if inputs == list(node.inputs):
            return None
        return Node(node.op, tuple(inputs), node.type, node.name, node.attributes, node.source)

    if not model.unused or any(change(node) is not None for node in model.graph.nodes):
        yield Try("tensors of other layers, all of which are used -> in the order of the file", change)


def _by_layer(nodes: list[Node]) -> dict[int, Node]:
    """The first node of each layer."""
    by_layer: dict[int, Node] = {}
    for node in nodes:
        layer = layer_of(node.name)
        if layer is not None:
            by_layer.setdefault(layer, node)
    return by_layer


def _windows(model: EditSource) -> Iterator[Try]:
    attends = _by_layer(model.nodes("attention"))
    sizes = {layer: int(number(node.attributes, "window")) for layer, node in attends.items()}
    for says, source in others(len(sizes)) if len(set(sizes.values())) > 1 else ():

        def change(node: Node, source: Source = source) -> Node | None:
            layer = layer_of(node.name)
            if node.op.name != "attention" or layer not in sizes:
                return None
            return changed(node, window=sizes.get(source(layer), sizes[layer]))

        yield Try(f"window -> that {says}", change)


def _tables(model: EditSource) -> Iterator[Try]:
    """A rope table for each layer: those of other layers, each of several for all, or by a period."""
    tables = {layer: node.inputs[1] for layer, node in _by_layer(model.nodes("rope")).items()}
    distinct: dict[object, Node] = {}
    for node in model.nodes("rope"):
        distinct.setdefault(_facts(node.inputs[1]), node.inputs[1])
    if len(distinct) < 2:
        return
    for says, source in others(len(tables)):
        wanted = {layer: tables.get(source(layer), table) for layer, table in tables.items()}
        yield Try(f"rope table -> that {says}", _with_tables(wanted))
    for own in distinct.values():
        yield Try(f"rope table -> {own.name} in every layer", _with_tables(dict.fromkeys(tables, own)))
        for other in (table for table in distinct.values() if table is not own):
            for period in PERIODS:
                for at in (period - 1, 0):
                    wanted = {layer: own if layer % period == at else other for layer in tables}
                    which = "last" if at else "first"
                    says = f"rope table -> {own.name} in the {which} of {period} layers"
                    yield Try(f"{says}, else {other.name}", _with_tables(wanted))


def _facts(table: Node) -> object:
    """What tells tables apart."""
    return (
        table.op.name,
        tuple(sorted(map(str, table.attributes.items()))),
        tuple(x.name for x in table.inputs),
    )


def _with_tables(wanted: Mapping[int, Node]) -> Callable[[Node], Node | None]:
    def change(node: Node) -> Node | None:
        table = wanted.get(-1 if (layer := layer_of(node.name)) is None else layer)
        if node.op.name != "rope" or table is None or _facts(table) == _facts(node.inputs[1]):
            return None
        if table.shape != node.inputs[1].shape:
            return None
        return Node(node.op, (node.inputs[0], table), node.type, node.name, node.attributes, node.source)

    return change


MISTAKES = (
    Mistake("layers-in-another-order", "layers are run in another order", _reordered),
    Mistake("window-of-another-layer", "a layer has the window of another", _windows),
    Mistake("rope-of-another-layer", "a layer has the rope of another", _tables),
)
