"""Forced graphs: every value computed from given ones; also single parts of graphs, and how to run them.

They separate "wrong here" from "inherited": a forced graph computes each node from another run's inputs of
that node. Knows graphs and the contract of backends; nothing of models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from graphml.backend import Device, Plan, Program, State, no_progress
from graphml.errors import UsageError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import input_leaf, state_leaf
from graphml.ir.ops.linear import dequantize, quantize
from graphml.ir.shape import resolve
from graphml.passes.expand import expand
from graphml.passes.patch import values
from graphml.passes.plan import aligned
from graphml.passes.rewrite import rebuild

GIVEN = "given:"  # prefix of the inputs of a forced graph, before the name of the node

OUTPUT = "output:"  # prefix of the outputs of an observed graph


@dataclass(frozen=True)
class LeafArrays:
    """Values of a graph's leaves in one step: inputs, weights and states by name, and the dimensions."""

    inputs: Mapping[str, Array]
    weights: Mapping[str, Array]
    states: Mapping[str, Array] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)


def shown(graph: Graph) -> list[Node]:
    """The nodes whose values a run can return, in order: computed values, and states after the step.

    A recurrent state is represented by its leaf, after the node that changes it.
    """
    seen, visible = set(values(graph)), []
    for node in graph.nodes:
        if node in seen or node.op.is_write:
            visible.append(node)
        if node.op.writes is not None and node.op.recurrent:
            visible.append(node.inputs[node.op.writes])
    return visible


def is_state(node: Node) -> bool:
    """Whether a node represents a state; forced graphs replace no states."""
    return node.op.is_write or node.op is state_leaf


def changer(graph: Graph, node: Node) -> Node:
    """The node that computes a shown value: the node itself, or the node that changes a recurrent state."""
    if node.op is not state_leaf:
        return node
    return next(
        writer
        for writer in graph.nodes
        if writer.op.recurrent and writer.inputs[writer.op.writes or 0] is node
    )


def observed(graph: Graph) -> Graph:
    """The same graph with every value that can be shown as an output with its node's name.

    Its own outputs are renamed to `output:NAME`: a node may have the name of another's output.
    """
    own = {OUTPUT + name: node for name, node in graph.outputs.items()}
    return Graph(graph.nodes, {**own, **{node.name: node for node in shown(graph)}})


def forced(graph: Graph, given_names: Collection[str]) -> Graph:
    """The graph with inputs `given:NAME` in place of the nodes' own inputs, for all given names.

    Every value that can be shown is an output with its node's name.
    """
    seen: dict[Node, Node] = {}  # node -> the node that its readers read
    outputs: dict[str, Node] = {}
    order: list[Node] = []
    visible = set(shown(graph))
    for node in graph.nodes:
        inputs = tuple(seen[source] for source in node.inputs)
        moved = node.on(inputs)
        order.append(moved)
        seen[node] = moved
        if node in visible:
            outputs[node.name] = moved
        if node.name in given_names and not is_state(node):
            seen[node] = Node(input_leaf, (), node.type, GIVEN + node.name)
            order.append(seen[node])
    return make_graph(order, outputs)


@lru_cache(maxsize=16)
def _places(graph: Graph) -> tuple[dict[str, Node], dict[Node, int]]:
    return {node.name: node for node in graph.nodes}, {node: i for i, node in enumerate(graph.nodes)}


def unit(graph: Graph, name: str, given_names: Collection[str]) -> list[Node]:
    """The node and all nodes between it and given values or leaves: the possible causes of a difference."""
    nodes, places = _places(graph)
    target = changer(graph, nodes[name])
    members = {target}
    stack = list(target.inputs)
    while stack:
        node = stack.pop()
        if node in members or node.op.family == "leaf" or (node.name in given_names and not is_state(node)):
            continue
        members.add(node)
        stack.extend(node.inputs)
    return sorted(members, key=places.__getitem__)


def extract(graph: Graph, name: str, given_names: Collection[str]) -> Graph:
    """The unit of a node as a graph of its own with the output `result`; given values are inputs."""
    parts = unit(graph, name, given_names)
    new: dict[Node, Node] = {}
    order: list[Node] = []
    for node in graph.nodes:
        if node in parts:
            new[node] = replace(node, inputs=tuple(new[source] for source in node.inputs))
        elif any(node in part.inputs for part in parts):
            new[node] = node if node.op.family == "leaf" else Node(input_leaf, (), node.type, node.name)
        else:
            continue
        order.append(new[node])
    return make_graph(order, {"result": new[graph.node(name)]})


def unquantized(graph: Graph) -> Graph:
    """The graph without quantised activations: no blocks of int8."""
    plain = expand(graph, lambda node: node.dtype.numpy is None)  # fused ops that end in a conversion

    def left(node: Node) -> Node:
        if node.op is quantize:
            return node.inputs[0]
        undone = node.op is dequantize and node.inputs[0].dtype is F32  # of an unconverted value
        return node.inputs[0] if undone else node

    return rebuild(plain, left)


class Lowered:
    """A graph lowered on a device, for one step or several; states are kept between steps.

    Every value has a place of its own in the arena, so that none is overwritten. program: of a graph that
    is lowered already.
    """

    def __init__(
        self, device: Device, graph: Graph, weights: Mapping[str, Array], program: Program | None = None
    ) -> None:
        self.graph = graph
        self._device = device
        self._program = program or device.lower(graph, apart(graph, device), weights, no_progress)

    def run(self, arrays: LeafArrays) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run a step; returns copies of the outputs and of the states after it."""
        state = self._device.state(self.graph, arrays.dims)
        feed(self._program.inputs, self.graph, arrays, state)
        outputs = self._program.run(arrays.dims, state)
        states = {name: state.array(name).copy() for name in self.graph.leaves("state")}
        return {name: array.copy() for name, array in outputs.items()}, states


def feed(inputs: Mapping[str, Array], graph: Graph, arrays: LeafArrays, state: State) -> None:
    """Write a step's inputs and states; the unused part of an input becomes NaN."""
    for name in graph.leaves("state"):
        array = state.array(name)
        if name not in arrays.states or arrays.states[name].shape != array.shape:
            raise UsageError(f"{name}: wanted its state, an array {list(array.shape)}")
        array[...] = arrays.states[name]
    for name, node in graph.leaves("input").items():
        sizes = resolve(node.shape, arrays.dims)
        value = arrays.inputs.get(name)
        if value is None or value.shape != sizes:
            raise UsageError(
                f"{name}: wanted an array {list(sizes)}; got {None if value is None else value.shape}"
            )
        if inputs[name].dtype.kind == "f":
            inputs[name][...] = np.nan
        inputs[name][tuple(slice(size) for size in sizes)] = value


def apart(graph: Graph, device: Device) -> Plan:
    """A plan in which no value reuses the place of another."""
    offsets: dict[Node, int] = {}
    workspaces: dict[Node, int] = {}
    end = 0
    for node in graph.nodes:
        if node.op.view:
            if node.inputs[0] in offsets:
                offsets[node] = offsets[node.inputs[0]]
        elif node.op.name not in ("weight", "state") and not node.op.is_write:
            offsets[node], end = end, end + aligned(device.storage(node))
        if not node.op.view and device.workspace(node):
            workspaces[node], end = end, end + aligned(device.workspace(node))
    return Plan(offsets, workspaces, end, end)


def run(device: Device, graph: Graph, arrays: LeafArrays) -> tuple[dict[str, Array], dict[str, Array]]:
    """Run a graph once; returns copies of its outputs and of the states after it."""
    return Lowered(device, graph, arrays.weights).run(arrays)


def narrowed(graph: Graph, names: Collection[str]) -> Graph:
    """The graph of some of the outputs alone; states that they do not need are not changed."""
    outputs = {name: node for name, node in graph.outputs.items() if name in names}
    needed: set[Node] = set()
    stack = [changer(graph, node) for node in outputs.values()] + list(outputs.values())
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.inputs)
    return Graph(tuple(node for node in graph.nodes if node in needed), outputs)
