"""Patches and kept values: user functions inserted into a graph, and nodes that a caller wants to read.

Readers of a patched node read the function's result. A patch is a node that no backend has a kernel for, so
it runs in NumPy between the kernels; everything else is compiled as without patches. Kept values become
outputs, which no fusion may cover.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.errors import UsageError, did_you_mean
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Attributes, Op, Type
from graphml.passes.cut import constants
from graphml.passes.llama_cpp_names import as_ours, is_ambiguous, why_not

Function = Callable[[Array], "Array | None"]
UNPATCHED = ".unpatched"  # suffix of the original node; the patch has its name


@dataclass(frozen=True)
class Patch:
    """A name of nodes as built, or a pattern of names (`layers.*.swiglu`), and the function of their values.

    function: called with a copy that it may keep or change, returns an array of the same shape; None leaves
    the value as it is.
    """

    pattern: str
    function: Function


def patch(graph: Graph, patches: Sequence[Patch]) -> Graph:
    """Insert the patches; several patches of one node in the given order.

    Leaves, changes of state and values that depend on weights alone cannot be patched and never match; a
    pattern that matches nothing is a `UsageError`.
    """
    if not patches:
        return graph
    names = [node.name for node in values(graph)]
    hits = {patch: {*hits_of("patch", patch.pattern, names)} for patch in patches}
    new: dict[Node, Node] = {}
    order: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(new[source] for source in node.inputs)
        moved = node.on(inputs)
        wanted = [patch for patch in patches if node.name in hits[patch]]
        if wanted:
            moved = replace(moved, name=node.name + UNPATCHED)
            order.append(moved)
            for i, patch in enumerate(wanted, 1):
                name = node.name if i == len(wanted) else f"{node.name}.patch_{i}"
                moved = Node(_patch_op(patch, node.name), (moved,), node.type, name, source=node.source)
                order.append(moved)
        else:
            order.append(moved)
        new[node] = moved
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})


def values(graph: Graph) -> list[Node]:
    """The nodes whose values a step computes and NumPy can represent, in order.

    No leaves, changed states, blocks of quantised activations, or values that depend on weights alone.
    """
    fixed = constants(graph)
    nodes = []
    for node in graph.nodes:
        skipped = node in fixed or node.op.family == "leaf" or node.op.is_write
        if not skipped and node.dtype.numpy is not None:
            nodes.append(node)
    return nodes


def hits_of(argument: str, pattern: str, names: Collection[str]) -> list[str]:
    """The names that a name or pattern selects; UsageError of the argument where there are none.

    Also by llama.cpp's names (`l_out-5`), of which an error names one that two values have there.
    """
    hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
    if not hits:
        hits = as_ours(pattern, names)
        if is_ambiguous(pattern) and len({name.rsplit(".", 1)[1] for name in hits}) > 1:
            ours = " or ".join(map(repr, hits[:2]))
            raise UsageError(
                f"{argument}: {pattern!r} names two values of llama.cpp, before and after rotary positions: "
                f"wanted {ours}"
            )
    if not hits:
        raise UsageError(
            f"{argument}: no value of the graph is called {pattern!r}.{_instead(pattern, names)}"
        )
    return hits


def _patch_op(patch: Patch, name: str) -> Op:
    """A separate op for each patched node; its reference is the function."""

    def same(inputs: Sequence[Type], attributes: Attributes) -> Type:
        return inputs[0]

    def call(arrays: Sequence[Array], attributes: Attributes) -> Array:
        array = arrays[0]
        returned = patch.function(array.copy())
        if returned is None:
            return array
        result = np.asarray(returned)
        if result.shape != array.shape or not np.can_cast(result.dtype, array.dtype, "same_kind"):
            raise UsageError(
                f"patch {patch.pattern!r} at {name}: wanted an array {array.dtype}{list(array.shape)} back; "
                f"got {result.dtype}{list(result.shape)}"
            )
        return result.astype(array.dtype, copy=False)

    return Op("patch", "patch", same, call, samples=list)


def keep_values(graph: Graph, patterns: Iterable[str]) -> Graph:
    """Make an output `value:NAME` of every node that a name or pattern selects.

    Leaves are not computed and never match. A pattern that matches nothing is a `UsageError`.
    """
    names = {node.name: node for node in graph.nodes if node.op.family != "leaf" and not node.op.is_write}
    kept: dict[str, Node] = {}
    for pattern in patterns:
        kept |= {f"value:{name}": names[name] for name in hits_of("keep", pattern, names)}
    return Graph(graph.nodes, {**graph.outputs, **kept})


def _instead(name: str, names: Collection[str]) -> str:
    """A hint for a name made by a pass: the nodes that it was made from, else similar names."""
    elsewhere = why_not(name, names)
    if elsewhere:
        return elsewhere
    scope, dot, last = name.rpartition(".")
    parts = [scope + dot + part for part in last.split("+")]
    if len(parts) > 1 and all(part in names for part in parts):
        return f" A pass makes it of several values: keep {' or '.join(map(repr, parts))}"
    if scope in names:
        return f" If a pass makes it of {scope!r}: keep that"
    number = re.search(r"\.(\d+|\*)(?:\.|$)", name)
    if number and not any(known.startswith(name[: number.start() + 1]) for known in names):
        layer = f"layers.{number[1]}.*"  # other programs have other words before the number
        if fnmatch.filter(names, layer):
            return f" Did you mean {layer!r}?"
    some = ", ".join(map(repr, list(names)[:3]))
    listed = f" It has {len(names)}: {some}, ...; `graphml explain MODEL` lists them"
    return did_you_mean(name, names) or listed
