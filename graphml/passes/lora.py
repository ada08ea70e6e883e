"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) in a graph: each product gets what they add.

`W x` becomes `W x + f b (a x)`, where f is the adapter's factor in that row of the step: an input, so that
one program serves every scale, and rows with different adapters beside each other. Rows of an embedding table
get `f b a[id]`. Knows ops and names of weights; nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphml.errors import UsageError
from graphml.ir.builder import complete, infer_type
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Attribute, Op, Type
from graphml.ir.ops.elementwise import add, mul
from graphml.ir.ops.index import get_rows
from graphml.ir.ops.layout import columns, reshape
from graphml.ir.ops.leaf import input_leaf, weight_leaf
from graphml.ir.ops.linear import mul_mat, mul_mat_id
from graphml.ir.shape import bounds

FACTORS = "adapter_factors"
"""The input of the factors: float32 [T, adapters]; a row's factor of an adapter, 0 where it has no part."""
WITHOUT = ".without_adapters"  # suffix of a product as it was; the sum has its name
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter of a model. Two are equal when their fingerprints are.

    name: for errors. fingerprint: hash of its file. pairs: tensor of the model -> (a, b), float32, with
    `alpha / rank` multiplied into a. a [r, in] and b [out, r] of a matrix; [expert, r, in] and
    [expert, out, r] of experts; [n_vocab, r] and [n_embd, r] of the embedding table. invocation: the ids from
    which on it is meant to work (activated LoRA, Greenewald et al. 2025, arXiv:2504.12397); empty: all.
    offsets: tensor of the model -> [out], added to the products with it, times the factor: biases.
    """

    name: str = field(compare=False)
    fingerprint: str
    pairs: Mapping[str, tuple[Array, Array]] = field(compare=False, repr=False)
    invocation: tuple[int, ...] = field(default=(), compare=False)
    offsets: Mapping[str, Array] = field(default_factory=dict, compare=False, repr=False)

    def changes(self, tensor: str) -> bool:
        """Whether it adds to products with this tensor."""
        return tensor in self.pairs or tensor in self.offsets

    def weight_names(self, tensor: str) -> tuple[str, str]:
        """The names of a pair's leaves in a graph."""
        start = f"adapter.{self.fingerprint[:16]}.{tensor}"
        return f"{start}.lora_a", f"{start}.lora_b"

    def offset_name(self, tensor: str) -> str:
        """The name of an offset's leaf, [out, 1], in a graph."""
        return f"adapter.{self.fingerprint[:16]}.{tensor}.lora_offset"

    def arrays(self) -> dict[str, Array]:
        """Name of the leaf -> its array."""
        offsets = {self.offset_name(tensor): array[:, None] for tensor, array in self.offsets.items()}
        return offsets | {
            name: array
            for tensor, pair in self.pairs.items()
            for name, array in zip(self.weight_names(tensor), pair, strict=True)
        }


def adaptable(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The tensors whose pairs `adapted` takes, but the embedding's: name -> shape, in the graph's order."""
    products: dict[str, tuple[int, ...]] = {}
    others = set()
    for node in graph.nodes:
        for number, source in enumerate(node.inputs):
            leaf = _undecoded(source)
            if leaf.op is not weight_leaf or node.op.name == "dequantize":
                continue
            if number == 0 and node.op in (mul_mat, mul_mat_id):
                products[leaf.name] = bounds(leaf.shape)
            else:
                others.add(leaf.name)
    return {name: shape for name, shape in products.items() if name not in others}


def adapted(graph: Graph, adapters: Sequence[Adapter]) -> Graph:
    """The graph with what the adapters add; UsageError where a tensor is no matrix of a product."""
    return _Adapting(graph, adapters).run() if adapters else graph


class _Adapting:
    def __init__(self, graph: Graph, adapters: Sequence[Adapter]) -> None:
        self._graph, self._adapters = graph, adapters
        self._users = graph.users()
        self._order: list[Node] = []
        self._new: dict[Node, Node] = {}
        self._leaves: dict[str, Node] = {}
        self._own = {node.name: node for node in graph.nodes if node.op in (input_leaf, weight_leaf)}
        self._tokens = graph.symbols().get("T")
        # Where the sum of a product is made: at the product, or at its multiplication by the tensor's scale.
        self._sums = {self._summed(node): node for node in graph.nodes if self._tensor(node)}

    def run(self) -> Graph:
        for node in self._graph.nodes:
            self._check(node)
            if node in self._new:
                continue  # a leaf that was needed earlier
            inputs = tuple(self._new[source] for source in node.inputs)
            new_node = node.on(inputs)
            product = self._sums.get(node)
            self._new[node] = self._put(new_node) if product is None else self._sum(new_node, product)
        return make_graph(self._order, {name: self._new[node] for name, node in self._graph.outputs.items()})

    def _tensor(self, node: Node) -> str | None:
        """The tensor of a product, or table of ids, that some adapter changes."""
        if node.op not in (mul_mat, mul_mat_id, get_rows):
            return None
        leaf = _undecoded(node.inputs[0])
        if leaf.op is not weight_leaf or not any(adapter.changes(leaf.name) for adapter in self._adapters):
            return None
        return leaf.name if (node.op is get_rows) == (leaf.name == EMBEDDING) else None

    def _check(self, node: Node) -> None:
        for source in node.inputs:
            leaf = _undecoded(source)
            known = leaf.op is weight_leaf and node.op.name != "dequantize"
            who = (
                next((adapter for adapter in self._adapters if adapter.changes(leaf.name)), None)
                if known
                else None
            )
            tied = leaf.name == EMBEDDING and node.op is mul_mat  # the pair is the table's, not the output's
            if who is not None and not tied and (self._tensor(node) is None or source is not node.inputs[0]):
                raise UsageError(
                    f"{who.name}: wanted pairs for matrices that activations are multiplied by; "
                    f"{leaf.name} is an operand of {node.op.name}"
                )

    def _summed(self, product: Node) -> Node:
        """The node that the sum is made of; llama.cpp's `build_ffn` alone scales products after the sum."""
        users, tensor = self._users[product], _undecoded(product.inputs[0]).name
        if len(users) == 1 and users[0].op is mul and not re.search(r"\.ffn_(gate|up|down)\.", tensor):
            (other,) = [operand for operand in users[0].inputs if operand is not product] or [product]
            if _looked_up(other).name == tensor.removesuffix(".weight") + ".scale":
                return users[0]
        return product

    def _sum(self, node: Node, product: Node) -> Node:
        tensor = self._tensor(product)
        assert tensor is not None
        total = self._put(replace(node, name=node.name + WITHOUT))
        terms = [(i, self._delta) for i, adapter in enumerate(self._adapters) if tensor in adapter.pairs]
        terms += [(i, self._offset) for i, adapter in enumerate(self._adapters) if tensor in adapter.offsets]
        for count, (i, term) in enumerate(terms, 1):
            name = f"{node.name}.adapter_{i}{'.offset' if term == self._offset else ''}"
            added = term(product, self._adapters[i], i, name)
            total = self._make(add, node.name if count == len(terms) else f"{name}.sum", total, added)
        return total

    def _offset(self, product: Node, adapter: Adapter, number: int, name: str) -> Node:
        """The factor in each row times the offset, as a product of one column."""
        tensor = self._tensor(product)
        assert tensor is not None
        column = self._weight(adapter.offset_name(tensor), adapter.offsets[tensor][:, None])
        return self._make(mul_mat, name, column, self._factor(product, number, name))

    def _delta(self, product: Node, adapter: Adapter, number: int, name: str) -> Node:
        tensor = self._tensor(product)
        assert tensor is not None
        rest = [self._new[source] for source in product.inputs[1:]]
        a, b = map(self._weight, adapter.weight_names(tensor), adapter.pairs[tensor])
        if product.op is get_rows:
            low, up = self._make(get_rows, f"{name}.a", a, *rest, from_dtype="f32"), mul_mat
        else:
            low, up = self._make(product.op, f"{name}.a", a, *rest), product.op
        low = self._make(mul, f"{name}.low", low, self._factor(low, number, name))
        return self._make(up, f"{name}.b", b, low, *(rest[1:] if up is mul_mat_id else ()))

    def _factor(self, low: Node, number: int, name: str) -> Node:
        """The adapter's factor in each row, with as many dimensions as the value that it multiplies."""
        rows = low.shape[0]
        tokens = self._tokens
        if tokens is None or rows not in (tokens, self._graph.symbols().get("O")):
            raise UsageError(
                f"{self._adapters[number].name}: {name}: wanted rows of a step's tokens, got {rows} rows"
            )
        factors = self._leaf(FACTORS, input_leaf, Type(F32, (tokens, len(self._adapters))))
        if rows != tokens:
            chosen = self._leaf("output_rows", input_leaf, None)
            factors = self._once(f"{FACTORS}.outputs", get_rows, factors, chosen, from_dtype="f32")
        start = "outputs." if rows != tokens else ""
        factor = self._once(f"{FACTORS}.{start}{number}", columns, factors, start=number, stop=number + 1)
        if len(low.shape) > 2:
            tail = (1,) * (len(low.shape) - 1)
            factor = self._once(f"{FACTORS}.{start}{number}.{len(tail)}", reshape, factor, tail=tail, keep=1)
        return factor

    def _weight(self, name: str, array: Array) -> Node:
        return self._leaf(name, weight_leaf, Type(F32, array.shape))

    def _leaf(self, name: str, op: Op, type: Type | None) -> Node:
        """A leaf of this name: the graph's own, or a new one."""
        if name not in self._leaves:
            own = self._own.get(name)
            if own is None:
                assert type is not None
                self._leaves[name] = self._put(Node(op, (), type, name))
            elif own not in self._new:
                self._leaves[name] = self._new[own] = self._put(own)
            else:
                self._leaves[name] = self._new[own]
        return self._leaves[name]

    def _once(self, name: str, op: Op, *inputs: Node, **attributes: Attribute) -> Node:
        if name not in self._leaves:
            self._leaves[name] = self._make(op, name, *inputs, **attributes)
        return self._leaves[name]

    def _make(self, op: Op, name: str, *inputs: Node, **attributes: Attribute) -> Node:
        full = complete(op, attributes)
        kind = infer_type(op, [node.type for node in inputs], full)
        return self._put(Node(op, tuple(inputs), kind, name, full))

    def _put(self, node: Node) -> Node:
        self._order.append(node)
        return node


def _undecoded(node: Node) -> Node:
    return node.inputs[0] if node.op.name == "dequantize" else node


def _looked_up(node: Node) -> Node:
    """The table that a value has rows of, as experts have their scales, or the value itself."""
    while node.op in (get_rows, reshape):
        node = node.inputs[0]
    return node
