"""Checks that a graph is well formed: one read from text, and what passes made of one when it is compiled."""

from __future__ import annotations

from graphml.errors import GraphError
from graphml.ir.builder import check_operands, complete, infer_type
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.shape import Symbol
from graphml.ir.state_order import StateOrder
from graphml.ir.symbol_rules import check_leaf


def verify(graph: Graph) -> Graph:
    """The graph itself; a `GraphError` names the first node that breaks a rule.

    Rules: inputs come before their users; names are unique; types are what the op infers; attributes are
    known; symbols are where they may be (`symbol_rules`) and have one bound; states are read by the ops that
    may, and before they are changed (`state_order`); outputs are nodes of the graph.
    """
    seen: set[Node] = set()
    names: set[str] = set()
    symbols: dict[str, int] = {}
    states = StateOrder()
    for node in graph.nodes:
        _check_inputs(node, seen, states)
        _check_type(node)
        if node.name in names:
            raise GraphError(f"two nodes are called {node.name!r}")
        for dim in node.shape:
            if isinstance(dim, Symbol) and symbols.setdefault(dim.name, dim.bound) != dim.bound:
                raise GraphError(f"{node.name}: symbol {dim} was bounded by {symbols[dim.name]} before")
        names.add(node.name)
        seen.add(node)
    for name, node in graph.outputs.items():
        if node not in seen:
            raise GraphError(f"output {name!r} is not a node of the graph: {node}")
    return graph


def _check_inputs(node: Node, seen: set[Node], states: StateOrder) -> None:
    for source in node.inputs:
        if source not in seen:
            raise GraphError(f"{node.name}: input {source.name!r} does not come before it")
    try:
        states.add(node)
    except GraphError as error:
        raise GraphError(f"{node.name}: {error}") from None


def _check_type(node: Node) -> None:
    if node.op in LEAVES:
        if node.inputs:
            raise GraphError(f"{node.name}: a leaf has no inputs")
        check_leaf(node.op, node.name, node.type)
        return
    try:
        complete(node.op, node.attributes)
        wanted = infer_type(node.op, [source.type for source in node.inputs], node.attributes)
        check_operands(node.op, node.inputs, wanted)
    except GraphError as error:
        raise type(error)(f"{node.name}: {error}") from None
    if wanted != node.type:
        raise GraphError(f"{node.name}: [{node.op.name}] gives {wanted}; the node says {node.type}")
