"""Copying mistakes: a tensor used in place of another, which stays unused; a missing layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from graphml.authoring.mistakes.edit import (
    Change,
    EditSource,
    Mistake,
    Try,
    computed,
    leaf,
    made,
    product_of,
    stem,
    tensor_of,
)
from graphml.inspect.dumps.layers import layer_of, renumbered
from graphml.ir.builder import infer_type
from graphml.ir.node import Node
from graphml.ir.ops import elementwise
from graphml.ir.ops.leaf import state_leaf, weight_leaf
from graphml.ir.shape import bound

MOST_USES = 4  # of one tensor that are distinguished
Use = tuple[str, int]  # a node and the index of its input


def left_out(unused: Sequence[str]) -> list[str]:
    """The unused tensors other than scales, which most architectures ignore."""
    return [name for name in unused if not name.endswith((".scale", ".input_scale"))]


def _part(name: str) -> str:
    """`attn_q.bias` of `blk.3.attn_q.bias`; the name of a tensor outside of layers."""
    return f"{stem(name)}.{name.rpartition('.')[2]}"


def _uses(model: EditSource) -> dict[str, list[Use]]:
    """The uses of each tensor, in the order of the graph."""
    uses: dict[str, list[Use]] = {}
    for node in model.graph.nodes:
        for i, source in enumerate(node.inputs):
            name = tensor_of(source) if node.op.name != "dequantize" else None
            if name is not None:
                uses.setdefault(name, []).append((node.name, i))
    return uses


def _in_place(model: EditSource) -> Iterator[Try]:
    """The unused tensor in place of one that is used twice; then in place of any of its size.

    First single tensors, those of a name together; then whole products, whose bias the other may lack.
    """
    uses = _uses(model)
    several = {stem(name) for name, where in uses.items() if len(where) > 1}
    tries: dict[tuple[str, str, int], dict[Use, str]] = {}
    for missing in left_out(model.unused):
        for name, where in uses.items():
            for i, use in enumerate(where[:MOST_USES]):
                if _alike(model, name, missing, use[0]):
                    tries.setdefault((stem(name), stem(missing), i), {})[use] = missing
    for (read, wanted, i), places in sorted(tries.items(), key=lambda item: item[0][0] not in several):
        yield Try(_description(read, wanted, i if read in several else -1), _reading(model, places))
    ends = _products(model)
    whole: dict[tuple[str, str, int], dict[str, str]] = {}
    for missing in left_out(model.unused):
        for name, nodes in ends.items():
            for i, node in enumerate(nodes[:MOST_USES]):
                if _alike(model, name, missing, node):
                    whole.setdefault((stem(name), stem(missing), i), {})[node] = missing
    for (read, wanted, i), named in sorted(whole.items(), key=lambda item: item[0][0] not in several):
        description = _description(f"{read} and its bias", wanted, i if read in several else -1)
        yield Try(description, _product_with(model, named))


def _alike(model: EditSource, name: str, missing: str, node: str) -> bool:
    """Whether a node could read a tensor in place of another: of its own layer, of the same kind and size.

    Logits from the embedding are a separate mistake.
    """
    if missing == "output.weight":
        return False
    same = layer_of(node) == layer_of(missing) and name.rpartition(".")[2] == missing.rpartition(".")[2]
    return same and model.tensors[name].shape == model.tensors[missing].shape


def _description(read: str, wanted: str, use: int) -> str:
    which = f" at its use {use + 1}" if use >= 0 else ""
    return f"{read}{which} -> {wanted}, which goes unused"


def _products(model: EditSource) -> dict[str, list[str]]:
    """Tensor -> the last nodes of its products, with scale and bias, in the order of the graph."""
    whole = {node: name for node in model.graph.nodes if (name := product_of(node)) is not None}
    inner = {node.inputs[0] for node in whole if node.op.name != "mul_mat"}
    products: dict[str, list[str]] = {}
    for node, name in whole.items():
        if node not in inner:
            products.setdefault(name, []).append(node.name)
    return products


def _product_with(model: EditSource, named: Mapping[str, str]) -> Change:
    """Replace whole products by those with another tensor, and its bias in the file."""

    def change(node: Node) -> Node | None:
        if node.name not in named:
            return None
        inner = node
        while inner.op.name != "mul_mat":
            inner = inner.inputs[0]
        name = named[node.name]
        y = made(inner.op, leaf(model, name), inner.inputs[1], like=node)
        for kind, op in (("scale", elementwise.mul), ("bias", elementwise.add)):
            beside = f"{name.rpartition('.')[0]}.{kind}"
            y = made(op, y, leaf(model, beside), like=node) if beside in model.tensors else y
        return y

    return change


def _reading(model: EditSource, places: Mapping[Use, str]) -> Change:
    """Replace inputs of some nodes by other tensors."""

    def change(node: Node) -> Node | None:
        inputs = list(node.inputs)
        for i in range(len(inputs)):
            if (node.name, i) in places:
                inputs[i] = leaf(model, places[node.name, i])
        if inputs == list(node.inputs):
            return None
        return Node(node.op, tuple(inputs), node.type, node.name, node.attributes, node.source)

    return change


def _other_layer(model: EditSource) -> Iterator[Try]:
    """Tensors of one layer that others read too, although they have their own."""
    missing, places, parts = set(model.unused), dict[Use, str](), dict[str, None]()
    for name, where in _uses(model).items():
        layer = layer_of(name)
        for node, i in where:
            own = layer_of(node)
            if layer is not None and own is not None and own != layer:
                wanted = renumbered(name, layer, own)
                if wanted in missing:
                    places[node, i] = wanted
                    parts[_part(name)] = None
    if places:
        listed = ", ".join(list(parts)[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")
        yield Try(f"{listed} of another layer -> of the own", _reading(model, places))


def _layers(names: Iterator[str] | list[str]) -> dict[int, set[str]]:
    by_layer: dict[int, set[str]] = {}
    for name in names:
        layer = layer_of(name)
        if layer is not None:
            by_layer.setdefault(layer, set()).add(_part(name))
    return by_layer


def missing_layers(model: EditSource) -> list[int]:
    """The layers without any used tensor."""
    used = _layers(list(model.graph.leaves("weight")))
    return sorted(set(_layers(left_out(model.unused))) - set(used))


def _missing_layer(model: EditSource) -> Iterator[Try]:
    """Insert a copy of an existing layer with the tensors of the missing one, in its place."""
    missing = missing_layers(model)
    parts = _layers(list(model.tensors))
    if len(missing) != 1:
        return
    (layer,) = missing
    there = sorted({number for node in model.graph.nodes if (number := layer_of(node.name)) is not None})
    windows: list[int | None] = [
        None,
        0,
        *(int(size) for size in model.values("attention", "window") if size),
    ]
    near = sorted(there, key=lambda number: (abs(number - layer), number))
    for like in [number for number in near if parts.get(number) == parts[layer]][:3]:
        for window in dict.fromkeys(windows):
            copied = _Copy(model, like, layer, window)
            seen = "" if window is None else f" and a window of {window}"
            says = f"layer {layer} is missing: nothing uses blk.{layer}.* -> as layer {like}{seen}"
            yield Try(says, copied.change)


class _Copy:
    """A copy of a layer. The residual stream is the value that leaves a layer and has a token's width."""

    def __init__(self, model: EditSource, like: int, layer: int, window: int | None) -> None:
        self._model, self._like, self._layer, self._window = model, like, layer, window
        inside = [node for node in model.graph.nodes if layer_of(node.name) == like]
        self._nodes = [node for node in inside if node.op.family != "leaf"]
        self._starts = {s for node in self._nodes for s in node.inputs if self._is_stream(s, like)}
        readers = [node for node in model.graph.nodes if layer_of(node.name) != like]
        ends = [s for node in readers for s in node.inputs if s in inside and self._is_row(s)]
        self._end = ends[-1] if ends else None
        self._made: dict[Node, Node] = {}

    def _is_row(self, node: Node) -> bool:
        wide = len(node.shape) == 2 and bound(node.shape[1]) == self._model.n_embd
        return wide and node.op.family != "leaf" and node.op.name != "dequantize"

    def _is_stream(self, node: Node, layer: int) -> bool:
        return self._is_row(node) and layer_of(node.name) != layer

    def change(self, node: Node) -> Node | None:
        """The node with the layer between it and the stream that it reads, if that is the layer's place."""
        own = layer_of(node.name)
        if own is not None and own <= self._layer:
            return None
        inputs = tuple(self._after(s) if self._is_before(s, own) else s for s in node.inputs)
        return None if inputs == node.inputs else replace(node, inputs=inputs)

    def _is_before(self, source: Node, reader: int | None) -> bool:
        """Whether a value is from the last layer before the place, or is the first layer's input."""
        at = layer_of(source.name)
        if not self._is_row(source) or source in self._made.values():
            return False
        if self._layer == 0:
            return at is None and reader is not None
        return at == self._layer - 1

    def _after(self, x: Node) -> Node:
        if x not in self._made:
            self._made[x] = self._copied(x)
        return self._made[x]

    def _copied(self, x: Node) -> Node:
        if self._end is None:
            return x
        new = {start: _rows_of(x, start) for start in self._starts}
        for node in self._nodes:
            inputs = tuple(new[s] if s in new else self._moved_leaf(s) for s in node.inputs)
            attributes = dict(node.attributes)
            if self._window is not None and node.op.name == "attention":
                attributes["window"] = self._window
            kind = infer_type(node.op, [source.type for source in inputs], attributes)
            name = f"{renumbered(node.name, self._like, self._layer)}.copied"
            new[node] = Node(node.op, inputs, kind, name, attributes, node.source)
        return _rows_of(new[self._end], x)

    def _moved_leaf(self, node: Node) -> Node:
        name = renumbered(node.name, self._like, self._layer)
        if node.op is weight_leaf and name != node.name:
            tensor = self._model.tensors[name]
            if tensor.dtype != node.dtype.name or tensor.shape != node.shape:
                raise ValueError(f"{name} is another kind of tensor than {node.name}")
        return replace(node, name=name) if node.op in (weight_leaf, state_leaf) else node


def _rows_of(x: Node, like: Node) -> Node:
    """The same rows with the symbol of another value: all tokens are output rows here."""
    return x if x.type == like.type else computed("rows", lambda rows: rows, x, like=x, kind=like.type)


MISTAKES = (
    Mistake("layer-missing", "a layer of the file is left out", _missing_layer),
    Mistake("tensor-of-another-layer", "a layer reads another layer's tensor", _other_layer),
    Mistake("tensor-for-another", "a tensor is read where the file has another, left unused", _in_place),
)
