"""Finds terms in a graph and replaces what they cover by one fused node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphml.ir.builder import complete
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Term, Type


@dataclass(frozen=True)
class Match:
    """Where a term was found: the node of each variable and the nodes that the term covers, root first.

    A node that stands twice in the term is covered once.
    """

    variables: Mapping[str, Node]
    covered: tuple[Node, ...]

    @property
    def root(self) -> Node:
        """The node whose value the fused node replaces."""
        return self.covered[0]

    def attributes(self) -> dict[str, Attribute]:
        """The attributes of all covered nodes, the root's winning."""
        merged: dict[str, Attribute] = {}
        for node in reversed(self.covered):
            merged.update(node.attributes)
        return merged


@dataclass(frozen=True)
class Refusal:
    """Why a match is refused, and the node at which the condition failed."""

    reason: str
    at: Node


def find(term: Term, root: Node) -> Match | None:
    """Match a term with its root at a node; the operands of commutative ops in either order."""
    variables: dict[str, Node] = {}
    covered: list[Node] = []
    return Match(variables, tuple(dict.fromkeys(covered))) if _match(term, root, variables, covered) else None


def size(term: Term) -> int:
    """How many nodes a match of the term covers."""
    return 1 + sum(size(part) for part in term.arguments if isinstance(part, Term))


def almost(term: Term, root: Node) -> Refusal | None:
    """Where a term of at least three ops fails by one op alone: what stands there instead."""
    if size(term) < 3:
        return None
    misses = _misses(term, root)
    if len(misses) != 1:
        return None
    wanted, node = misses[0]
    return Refusal(f"{node.name} is {node.op.name}; wanted {wanted.op.name}", node)


def _misses(term: Term | str, node: Node) -> list[tuple[Term, Node]]:
    """The ops of a term that stand not where they should, in the better order of operands."""
    if isinstance(term, str):
        return []
    if len(node.inputs) != len(term.arguments):
        return [(term, node)] * size(term)
    here = [] if node.op is term.op else [(term, node)]
    orders: list[Sequence[Node]] = [node.inputs]
    if term.op.commutative:
        orders.append((node.inputs[1], node.inputs[0], *node.inputs[2:]))
    found = [
        [miss for t, n in zip(term.arguments, inputs, strict=True) for miss in _misses(t, n)]
        for inputs in orders
    ]
    return here + min(found, key=len)


def _match(term: Term | str, node: Node, variables: dict[str, Node], covered: list[Node]) -> bool:
    if isinstance(term, str):
        return variables.setdefault(term, node) is node
    if node.op is not term.op or len(node.inputs) != len(term.arguments):
        return False
    orders: list[Sequence[Node]] = [node.inputs]
    if term.op.commutative:
        orders.append((node.inputs[1], node.inputs[0], *node.inputs[2:]))
    for inputs in orders:
        trial_variables, trial_covered = dict(variables), [*covered, node]
        if all(
            _match(t, n, trial_variables, trial_covered) for t, n in zip(term.arguments, inputs, strict=True)
        ):
            variables.update(trial_variables)
            covered[:] = trial_covered
            return True
    return False


def fuse_node(op: Op, match: Match, inputs: Sequence[Node], attributes: Mapping[str, Attribute]) -> Node:
    """The fused node that stands for a match; it keeps the root's name and knows where it came from."""
    full = complete(op, attributes)
    kind: Type = op.infer([node.type for node in inputs], full)
    names = (name for node in match.covered for name in (node.origin or (node.name,)))
    origin = tuple(dict.fromkeys(names))
    return Node(op, tuple(inputs), kind, match.root.name, full, match.root.source, origin)


def substitute(graph: Graph, chosen: Mapping[Node, Callable[[Mapping[Node, Node]], Node]]) -> Graph:
    """Put other nodes in the place of chosen ones; each is made from what the nodes before it became."""
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in chosen:
            new[node] = chosen[node](new)
            continue
        inputs = tuple(new[source] for source in node.inputs)
        new[node] = node if inputs == node.inputs else replace(node, inputs=inputs)
    return make_graph(new.values(), {name: new[node] for name, node in graph.outputs.items()})


def rebuild(graph: Graph, change: Callable[[Node], Node | tuple[Node, ...]]) -> Graph:
    """Apply `change` to every node in order, its inputs changed already.

    `change` gives the node to put in place of the one it got, or several: the last replaces it, the others
    are new and stand before it.
    """
    new: dict[Node, Node] = {}
    order: dict[Node, None] = {}
    for node in graph.nodes:
        inputs = tuple(new[source] for source in node.inputs)
        moved = node if inputs == node.inputs else replace(node, inputs=inputs)
        result = change(moved)
        made = result if isinstance(result, tuple) else (result,)
        order.update(dict.fromkeys(made))
        new[node] = made[-1]
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})
