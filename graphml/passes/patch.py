"""Puts functions of the user's into a graph: readers of a patched node see what its function makes of it.

A patch is a node of its own, which no backend has a kernel for, so it runs in NumPy between the kernels;
everything else is compiled as ever.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.errors import UsageError
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Attributes, Op, Type

Function = Callable[[Array], "Array | None"]
UNPATCHED = ".unpatched"  # what a patched node's own value is called; its name is that of the patched one


@dataclass(frozen=True)
class Patch:
    """A name of nodes as built, or a pattern of names (`layers.*.swiglu`), and the function of their values.

    function: called with an array of its own to keep or change, gives one of the same shape; None leaves
    the value as it is.
    """

    pattern: str
    function: Function


def patch(graph: Graph, patches: Sequence[Patch]) -> Graph:
    """Insert the patches, in the order given where several name a node.

    Leaves, changes of state, and what weights alone decide cannot be patched, and no pattern finds them; a
    pattern that finds nothing is a `UsageError`.
    """
    if not patches:
        return graph
    names = [node.name for node in values(graph)]
    found = {one: _hits(one.pattern, names) for one in patches}
    new: dict[Node, Node] = {}
    order: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(new[source] for source in node.inputs)
        moved = node if inputs == node.inputs else replace(node, inputs=inputs)
        wanted = [one for one in patches if node.name in found[one]]
        if wanted:
            moved = replace(moved, name=node.name + UNPATCHED)
            order.append(moved)
            for i, one in enumerate(wanted, 1):
                name = node.name if i == len(wanted) else f"{node.name}.patch_{i}"
                moved = Node(_patch_op(one, node.name), (moved,), node.type, name, source=node.source)
                order.append(moved)
        else:
            order.append(moved)
        new[node] = moved
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})


def values(graph: Graph) -> list[Node]:
    """The nodes whose values a step computes and NumPy can show, in order.

    No leaves, no changed states, no blocks of quantised activations, nothing that weights alone decide.
    """
    constant: set[Node] = set()
    found = []
    for node in graph.nodes:
        if node.op.name == "weight" or (node.inputs and all(source in constant for source in node.inputs)):
            constant.add(node)
        elif node.op.family != "leaf" and not node.op.is_write and node.dtype.numpy is not None:
            found.append(node)
    return found


def _hits(pattern: str, names: Sequence[str]) -> set[str]:
    hits = {pattern} & set(names) or set(fnmatch.filter(names, pattern))
    if not hits:
        raise UsageError(f"patch: no value of the graph is called {pattern!r}")
    return hits


def _patch_op(one: Patch, name: str) -> Op:
    """An op of its own for each place: its meaning is the function."""

    def same(inputs: Sequence[Type], attributes: Attributes) -> Type:
        return inputs[0]

    def call(arrays: Sequence[Array], attributes: Attributes) -> Array:
        given = arrays[0]
        made = one.function(given.copy())
        if made is None:
            return given
        result = np.asarray(made)
        if result.shape != given.shape or not np.can_cast(result.dtype, given.dtype, "same_kind"):
            raise UsageError(
                f"patch {one.pattern!r} at {name}: wanted an array {given.dtype}{list(given.shape)} back; "
                f"got {result.dtype}{list(result.shape)}"
            )
        return result.astype(given.dtype, copy=False)

    return Op("patch", "patch", same, call, samples=list)
