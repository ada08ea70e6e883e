"""Reference interpreter: runs a graph in NumPy, node by node; everything else is tested against it.

Slow and plain on purpose. Knows no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphml.errors import GraphError
from graphml.ir.fused import decomposition
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import LEAVES, weight_leaf

Observer = Callable[[Node, Array], None]


def evaluate(node: Node, values: Mapping[Node, Array]) -> Array:
    """The value of one node from those of its inputs; a fused op is evaluated through its decomposition."""
    if node.op.reference is not None:
        return _referred(node, [values[source] for source in node.inputs])
    arrays = [values[source] for source in node.inputs]
    plain = decomposition(node.op, [source.type for source in node.inputs], node.attributes)
    results = list(interpret(plain, {f"operand_{i}": array for i, array in enumerate(arrays)}).values())
    return together(results) if node.type.parts else results[0]


def _referred(node: Node, arrays: list[Array]) -> Array:
    """The reference of a plain op; it gets arrays that it cannot change, but for the state that it writes."""
    assert node.op.reference is not None
    for i, array in enumerate(arrays):
        if i != node.op.writes and array.flags.writeable:
            arrays[i] = array = array.view()
            array.flags.writeable = False
    try:
        return node.op.reference(arrays, node.attributes)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise GraphError(
            f"%{node.name}: the reference of {node.op.name!r} changes an operand; wanted a new array, "
            "because others may read the operand too"
        ) from error


def depends_on(node: Node) -> Node | None:
    """An input or a state that a value depends on; None where weights and constants alone decide it."""
    todo, seen = [node], {node}
    while todo:
        current = todo.pop()
        if current.op.family == "leaf" and current.op is not weight_leaf:
            return current
        todo += (source for source in current.inputs if source not in seen)
        seen.update(current.inputs)
    return None


def of_weights(node: Node, weights: Mapping[str, Array]) -> Array:
    """A value that depends on nothing but weights, from their arrays by name."""
    if node.op is weight_leaf:
        return weights[node.name]
    return evaluate(node, {source: of_weights(source, weights) for source in node.inputs})


def together(arrays: Sequence[Array]) -> Array:
    """Several results as one value: an array of the arrays."""
    held: Array = np.empty(len(arrays), object)
    for i, array in enumerate(arrays):
        held[i] = array
    return held


def interpret(graph: Graph, leaves: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
    """Output name -> array.

    leaves: name -> array of every input, weight and state; states are changed in place.
    observe: called with every node and its value, in order.
    """
    values: dict[Node, Array] = {}
    for node in graph.nodes:
        if node.op in LEAVES:
            if node.name not in leaves:
                raise GraphError(f"no value for {node.op.name} {node.name!r}")
            values[node] = leaves[node.name]
        else:
            values[node] = evaluate(node, values)
        if observe is not None:
            observe(node, values[node])
    return {name: values[node] for name, node in graph.outputs.items()}
