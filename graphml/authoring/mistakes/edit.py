"""Mistakes, and helpers for their edits: new nodes, products by their tensor, candidate values.

An edit is a function of one node, whose inputs are edited already: it returns the node's replacement, or None
to keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from graphml.errors import ShapeError
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.builder import complete, infer_type
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Attribute, Attributes, Op, Type, integers
from graphml.ir.ops import linear
from graphml.ir.ops.leaf import weight_leaf
from graphml.weights import Metadata, Tensor

Change = Callable[[Node], "Node | None"]


@dataclass(frozen=True)
class EditSource:
    """The source of edits: the graph as built, the file's metadata and tensors, and the unused ones."""

    graph: Graph
    metadata: Metadata
    tensors: Mapping[str, Tensor]
    unused: Sequence[str]

    def number(self, key: str) -> float | None:
        """A number under the architecture's prefix; None if the file has none of this name."""
        name = f"{self.metadata.text('general.architecture', '')}.{key}"
        value = self.metadata[name] if self.metadata.has(name) else None
        return float(value) if isinstance(value, int | float) else None

    def nodes(self, *ops: str) -> list[Node]:
        """The nodes of some ops."""
        return [node for node in self.graph.nodes if node.op.name in ops]

    def values(self, op: str, attribute: str) -> set[float]:
        """The values of an attribute."""
        return {float(node.attributes[attribute]) for node in self.nodes(op)}  # type: ignore[arg-type]

    def candidates(self, used: Iterable[float], *values: float | None) -> list[float]:
        """The known numbers other than the one used everywhere, each once, in order."""
        kept: list[float] = []
        for value in values:
            near = [value is None or isclose(value, other, rel_tol=1e-5) for other in kept]
            if value is not None and not any(near):
                kept.append(value)
        now = list(used)
        return [
            value
            for value in kept
            if not now or not all(isclose(value, other, rel_tol=1e-5) for other in now)
        ]

    @property
    def n_embd(self) -> int:
        """The width of the residual stream, 0 without an embedding."""
        table = self.tensors.get("token_embd.weight")
        return table.shape[-1] if table is not None else 0


@dataclass(frozen=True)
class Try:
    """One edit. says: its description, for the report."""

    says: str
    change: Change


@dataclass(frozen=True)
class Mistake:
    """A common mistake: its name, what is wrong, and the edits that would correct it in a model."""

    name: str
    says: str
    tries: Callable[[EditSource], Iterator[Try]]


def applied(graph: Graph, change: Change, layers: Iterable[int] | None = None) -> Graph | None:
    """The graph with the edit, in all layers or in some; None if it changes nothing.

    Nodes outside of layers are edited only if no layers are given. Outputs and names stay.
    """
    within = None if layers is None else frozenset(layers)
    new: dict[Node, Node] = {}
    order: dict[Node, None] = {}
    changed = False
    for node in graph.nodes:
        moved = node
        if changed:  # before the first edit all nodes are those of the graph
            inputs = tuple([new[source] for source in node.inputs])
            moved = node if inputs == node.inputs else _of(node, inputs)
        allowed = node.op.family != "leaf" and (within is None or layer_of(node.name) in within)
        edited = change(moved) if allowed else None
        changed |= edited is not None
        if edited is None:
            new[node] = moved
            order[moved] = None
            continue
        if edited not in order and edited is not moved:
            edited = replace(_renamed_within(edited, moved, order), name=node.name)
        new[node] = edited
        _put(edited, order)
    if not changed:
        return None
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})


def _of(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The node with other inputs; faster than `replace`, since all nodes after an edit are made again."""
    return Node(node.op, inputs, node.type, node.name, node.attributes, node.source, node.origin)


def _renamed_within(edited: Node, moved: Node, known: Mapping[Node, None]) -> Node:
    """The replacement, with the edited node within it renamed: names are unique."""
    if edited is moved:
        return replace(moved, name=f"{moved.name}.before")
    if edited in known or not edited.inputs:
        return edited
    inputs = tuple(_renamed_within(source, moved, known) for source in edited.inputs)
    return edited if inputs == edited.inputs else replace(edited, inputs=inputs)


def _put(node: Node, order: dict[Node, None]) -> None:
    """Append the node after its inputs."""
    stack = [node]
    while stack:
        pending = stack[-1]
        missing = [source for source in pending.inputs if source not in order]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        order.setdefault(pending)


def made(op: Op, *inputs: Node, like: Node, **attributes: Attribute) -> Node:
    """A new node, named after the node `like`."""
    full = complete(op, attributes)
    kind = infer_type(op, [node.type for node in inputs], full)
    return Node(op, inputs, kind, f"{like.name}.{op.name}", full, like.source)


def changed(node: Node, **attributes: Attribute) -> Node | None:
    """The node with other attributes; None if they are unchanged."""
    full = {**node.attributes, **attributes}
    if full == dict(node.attributes):
        return None
    kind = infer_type(node.op, [source.type for source in node.inputs], full)
    return replace(node, attributes=full, type=kind)


def fitted(node: Node, old: int, new: int) -> Node | None:
    """The node behind an edit that made `old` of something `new`: its type is inferred again.

    None if it is the same.
    """
    attributes = dict(node.attributes)
    kinds = [source.type for source in node.inputs]
    try:
        kind = infer_type(node.op, kinds, attributes)
    except ShapeError:
        tail = integers(attributes, "tail") if "tail" in attributes else ()
        if old not in tail:
            raise
        at = tail.index(old)
        attributes["tail"] = (*tail[:at], new, *tail[at + 1 :])
        kind = infer_type(node.op, kinds, attributes)
    return None if kind == node.type else replace(node, type=kind, attributes=attributes)


def computed(
    name: str, function: Callable[..., Array], *inputs: Node, like: Node, kind: Type | None = None
) -> Node:
    """A node that a NumPy function computes; its type is `kind`, by default the first input's."""
    result = inputs[0].type if kind is None else kind

    def infer(types: Sequence[Type], attributes: Attributes) -> Type:
        return result

    def call(arrays: Sequence[Array], attributes: Attributes) -> Array:
        return function(*arrays)

    op = Op(name, "tried", infer, call, samples=list)
    return Node(op, inputs, result, f"{like.name}.{name}", source=like.source)


def leaf(model: EditSource, name: str) -> Node:
    """The tensor as float32, found or new."""
    tensor = model.tensors[name]
    kind = Type(dtype(tensor.dtype), tensor.shape)
    node = Node(weight_leaf, (), kind, name)
    if kind.dtype is F32:
        return node
    full = {"from_dtype": kind.dtype.name}
    return Node(linear.dequantize, (node,), Type(F32, tensor.shape), f"{name}.f32", full)


def tensor_of(node: Node) -> str | None:
    """The tensor of a weight or of its conversion to float32; None for any other node."""
    if node.op is linear.dequantize:
        node = node.inputs[0]
    return node.name if node.op is weight_leaf else None


def embeds(node: Node) -> bool:
    """Whether a node is the lookup of tokens in the embedding table."""
    return node.op.name == "get_rows" and tensor_of(node.inputs[0]) == "token_embd.weight"


def nth_of_layers(nodes: Iterable[Node]) -> dict[int, set[str]]:
    """Names of nodes by their index among those of their layer; nodes outside of layers are omitted."""
    counts: dict[int, int] = {}
    by_layer: dict[int, set[str]] = {}
    for node in nodes:
        layer = layer_of(node.name)
        if layer is not None:
            counts[layer] = counts.get(layer, 0) + 1
            by_layer.setdefault(counts[layer], set()).add(node.name)
    return by_layer


def stem(name: str) -> str:
    """`attn_q` of `blk.3.attn_q.weight`."""
    return re.sub(r"^blk\.\d+\.", "", name).rpartition(".")[0]


def product_of(node: Node) -> str | None:
    """The tensor of a matrix product, looking through its scale and bias; None for other nodes."""
    while node.op.name in ("add", "mul") and tensor_of(node.inputs[1]) is not None:
        if tensor_of(node.inputs[1]).endswith((".bias", ".scale")):  # type: ignore[union-attr]
            node = node.inputs[0]
        else:
            return None
    return tensor_of(node.inputs[0]) if node.op.name == "mul_mat" else None


@dataclass(frozen=True)
class Places:
    """The whole products of a graph: the last node (with scale and bias) of each tensor's."""

    last: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> Places:
        """The places of a graph as built."""
        last = {}
        for node in graph.nodes:
            name = product_of(node)
            if name is not None:
                last[name] = node.name
        return cls(last)

    def stem(self, node: Node) -> str | None:
        """The stem of the tensor whose product ends at this node."""
        name = product_of(node)
        return stem(name) if name is not None and self.last.get(name) == node.name else None


def attribute_tries(
    model: EditSource, op: str, attribute: str, values: Iterable[float], kind: type = float
) -> Iterator[Try]:
    """An edit for each value of the attribute, applied to every node of the op."""
    now = sorted(model.values(op, attribute))
    listed = ", ".join(f"{used_value:g}" for used_value in now)
    for value in values:

        def change(node: Node, value: float = value) -> Node | None:
            if node.op.name != op:
                return None
            return changed(node, **{attribute: kind(value)})

        yield Try(f"{attribute} {listed} -> {value:g}", change)
