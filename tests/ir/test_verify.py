"""The verifier: every rule broken once, and caught by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from graphml.errors import GraphError
from graphml.ir.dtype import F32, I32
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.ops.leaf import input_leaf
from graphml.ir.shape import Symbol
from graphml.ir.verify import verify
from tests.graphs import Recipe, random_graphs
from tests.looped import looped


def chain() -> Graph:
    """X -> silu -> tanh, and a write of x to a state."""
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 2, 8))
    g.attend(x, x, x, layer=0, scale=1.0)
    return g.finish(y=g.tanh(g.silu(x)))


def with_last(graph: Graph, **changes: object) -> Graph:
    """The graph with its last node changed."""
    changed = replace(graph.nodes[-1], **changes)  # type: ignore[arg-type]  # whatever the test breaks
    return Graph((*graph.nodes[:-1], changed), {"y": changed})


def wrong_order(graph: Graph) -> Graph:
    return Graph((*graph.nodes[:-2], graph.nodes[-1], graph.nodes[-2]), graph.outputs)


def same_name(graph: Graph) -> Graph:
    return with_last(graph, name="silu")


def other_type(graph: Graph) -> Graph:
    return with_last(graph, type=Type(F32, (Symbol("T", 4), 2, 9)))


def unknown_attribute(graph: Graph) -> Graph:
    return with_last(graph, attributes={"speed": 9})


def two_bounds(graph: Graph) -> Graph:
    other = Node(input_leaf, (), Type(F32, (Symbol("T", 5),)), "other")
    return Graph((*graph.nodes, other), graph.outputs)


def operands_that_do_not_fit(graph: Graph) -> Graph:
    ids = Node(input_leaf, (), Type(I32, (2,)), "ids")
    changed = replace(graph.nodes[-1], inputs=(ids,))
    return Graph((*graph.nodes[:-1], ids, changed), {"y": changed})


def leaf_with_inputs(graph: Graph) -> Graph:
    leaf = Node(input_leaf, (graph.nodes[0],), Type(F32, (2,)), "leaf")
    return Graph((*graph.nodes, leaf), graph.outputs)


def foreign_output(graph: Graph) -> Graph:
    return Graph(graph.nodes[:-1], graph.outputs)


def written_twice(graph: Graph) -> Graph:
    write = next(node for node in graph.nodes if node.op.writes is not None)
    return Graph((*graph.nodes, replace(write, name="again")), graph.outputs)


def old_state_read(graph: Graph) -> Graph:
    write = next(node for node in graph.nodes if node.op.writes is not None)
    g = Builder(max_tokens=4)
    rows = g.rows(g.weight("w", F32, (2, 3)), g.tokens, name="late")
    late = replace(rows, inputs=(write.inputs[0], rows.inputs[1]))
    return Graph((*graph.nodes, rows.inputs[1], late), graph.outputs)


BREAKS: dict[Callable[[Graph], Graph], str] = {
    wrong_order: "tanh: input 'silu' does not come before it",
    same_name: "two nodes are called 'silu'",
    other_type: r"tanh: \[tanh\] gives f32\[T<=4, 2, 8\]; the node says f32\[T<=4, 2, 9\]",
    unknown_attribute: "tanh: .*no attribute 'speed'",
    operands_that_do_not_fit: r"tanh: \[tanh\] wanted operand 0 of f32; got i32\[2\]",
    two_bounds: "other: symbol T<=5 was bounded by 4 before",
    leaf_with_inputs: "leaf: a leaf has no inputs",
    foreign_output: "output 'y' is not a node of the graph",
    written_twice: r"again: \[set_rows\] changes the state 'cache.0.k' after .* \(.*:28\): give each",
    old_state_read: r"late: \[get_rows\] reads the state 'cache.0.k' after .*; %cache_write is",
}


def test_a_good_graph_passes() -> None:
    graph = chain()
    assert verify(graph) is graph


@looped("damage", BREAKS, ids=lambda damage: damage.__name__)
def test_a_broken_rule_is_caught(damage: Callable[[Graph], Graph]) -> None:
    with pytest.raises(GraphError, match=BREAKS[damage]):
        verify(damage(chain()))


@given(random_graphs())
def test_what_the_builder_makes_is_well_formed(recipe: Recipe) -> None:
    verify(recipe.graph)
