"""Where factors of products are rounded: activations, once for all quantised weights, and those of attention.

Rounding is a part of the graph, so that dumps show it and comparisons allow for it. Knows what backends say.
"""

from __future__ import annotations

from dataclasses import replace

from graphml.backend import Backend
from graphml.ir.builder import complete
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.ops.attention import attention
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import bound
from graphml.passes.fusions.linear import linear
from graphml.passes.fusions.linear_id import linear_id
from graphml.passes.rewrite import rebuild


def quantize_activations(graph: Graph, backend: Backend) -> Graph:
    """Put a `quantize` before each `linear` or `linear_id` whose dtypes the backend pairs and multiplies.

    With such products attention gets the `product_dtype` that the backend has for it; a model whose products
    are exact keeps exact attention.
    """
    rounds = any(
        node.op in (linear, linear_id) and backend.activation(node.inputs[0].dtype) for node in graph.nodes
    )
    quantized: dict[tuple[Node, str], Node] = {}

    def change(node: Node) -> Node | tuple[Node, ...]:
        if node.op is attention and rounds:
            return _rounded(node, backend)
        if node.op not in (linear, linear_id):
            return node
        weight, x = node.inputs[:2]
        wanted = backend.activation(weight.dtype)
        if wanted is None or x.dtype is wanted or bound(x.shape[-1]) % wanted.block_elements:
            return node
        known = quantized.get((x, wanted.name))
        converted = known or _quantized(x, wanted.name)
        rest = node.inputs[2:]
        product = Node(
            node.op,
            (weight, converted, *rest),
            node.type,
            node.name,
            node.attributes,
            node.source,
            node.origin,
        )
        if backend.refuses(product) is not None:
            return node
        quantized[x, wanted.name] = converted
        return product if known else (converted, product)

    return rebuild(graph, change)


def _rounded(node: Node, backend: Backend) -> Node:
    wanted = backend.product_dtype(node)
    if wanted == node.attributes["product_dtype"]:
        return node
    return replace(node, attributes=complete(attention, {**node.attributes, "product_dtype": wanted}))


def _quantized(x: Node, dtype_name: str) -> Node:
    attributes = complete(quantize, {"dtype": dtype_name})
    kind: Type = quantize.infer([x.type], attributes)
    return Node(quantize, (x,), kind, f"{x.name}.{dtype_name}", attributes, x.source, (x.name,))
