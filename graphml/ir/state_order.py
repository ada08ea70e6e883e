"""The order in which a step reads and changes its states, and the ops that may read one.

A state is a value that ops change in place. Each write makes a new version of it, which is the result of the
write; a recurrent op leaves a version that nothing can name. A version is read before it is changed or never,
so that a graph's meaning does not depend on when its nodes run. Knows ops by their facts; no pass.
"""

from __future__ import annotations

from graphml.errors import GraphError
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.ops.leaf import state_leaf


def state_of(node: Node) -> Node | None:
    """The state leaf of a value (the state itself, written, or a view of it); None for any other value."""
    while True:
        if node.op is state_leaf:
            return node
        if node.op.view:
            node = node.inputs[0]
        elif node.op.is_write:
            node = node.inputs[node.op.writes or 0]
        else:
            return None


def changed_by(node: Node) -> Node | None:
    """The version of a state that a node changes."""
    return None if node.op.writes is None else node.inputs[node.op.writes]


def check_state_operand(op: Op, i: int, node: Node) -> None:
    """Refuse a state as operand i of an op that does not read states: its rows lie as the cache decides."""
    if i != op.writes and i not in op.reads:
        state = state_of(node)
        if state is not None:
            raise GraphError(
                f"[{op.name}] wanted values of the step as operand {i}; got %{node.name}, which is the "
                f"state {state.name!r}: it is read by rows, g.rows(state, g.sequences), and by the ops that "
                "keep it; an op of one's own has no state"
            )


class StateOrder:
    """Takes the nodes of a graph in order, and refuses the first that reads a version after its change."""

    def __init__(self) -> None:
        self._writers: dict[Node, Node] = {}  # changed version -> the node that changed it

    def add(self, node: Node) -> None:
        """Take the next node; a `GraphError` tells what changed the state before, where, and what to do."""
        for source in node.inputs:
            if source in self._writers:
                raise GraphError(_too_late(node, source, self._writers[source]))
        version = changed_by(node)
        if version is not None:
            self._writers[version] = node


def _too_late(node: Node, version: Node, writer: Node) -> str:
    leaf = state_of(version)
    name = leaf.name if leaf is not None else version.name
    where = f" ({writer.source})" if writer.source is not None else ""
    if changed_by(node) is version:
        does, advice = "changes", 'give each a state of its own: another layer number, or another what="..."'
    else:
        does, advice = "reads", "read it before that"
    if writer.op.is_write:
        advice += f"; %{writer.name} is the changed state"
    return f"[{node.op.name}] {does} the state {name!r} after %{writer.name} changed it{where}: {advice}"
