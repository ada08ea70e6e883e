"""States that plain ops read and write by row: an architecture's own, beside those of recurrent ops.

A recurrent op reads the tokens of a text one after the other. `get_rows` and `set_rows` take all rows of a
step at once, so that of several tokens of a text each would read what was there before the step. A graph with
such a state has one meaning only where a step has one token of each text; `check_plain_states` refuses what
has no meaning there either. Knows nodes; nothing of steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphml.errors import GraphError
from graphml.ir.cell_groups import cells_dimension
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.ops.elementwise import cast, where
from graphml.ir.ops.index import get_rows, set_rows
from graphml.ir.ops.layout import reshape
from graphml.ir.ops.leaf import input_leaf, state_leaf
from graphml.ir.shape import Symbol
from graphml.ir.state_order import changed_by, state_of

INSTEAD = (
    "g.ssm_conv(x, weight, None, layer, what=...) keeps the last inputs of each text, recurrent ops more"
)


def is_of_sequences(state: Node) -> bool:
    """Whether a state has a row for each sequence."""
    return _rows_of(state) == "S"


def is_unchanged(node: Node) -> bool:
    """Whether a value is a state as it was before the step, or a view of that."""
    while node.op.view:
        node = node.inputs[0]
    return node.op is state_leaf


def plain_states(graph: Graph) -> dict[Node, Node]:
    """States of sequences that an op other than a recurrent one reads or writes -> the first such node."""
    states: dict[Node, Node] = {}
    for node, state in _uses(graph):
        if is_of_sequences(state) and not node.op.recurrent:
            states.setdefault(state, node)
    return states


def check_plain_states(graph: Graph) -> None:
    """Refuse the use of a state that another text, or a text that begins anew, would see.

    A `GraphError` names the node, its line and what to use instead.
    """
    for node, state in _uses(graph):
        if not node.op.recurrent and (reason := _misuse(graph, node, state)):
            raise GraphError(f"{described(node)}: {reason}")


def described(node: Node) -> str:
    """A node and where it was made, for errors and warnings."""
    at = f" (at {node.source})" if node.source is not None else ""
    return f"%{node.name}: [{node.op.name}]{at}"


def _uses(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Nodes that read or change a state, each with the state."""
    for node in graph.nodes:
        written = () if node.op.writes is None else (node.op.writes,)
        for i in (*written, *node.op.reads):
            state = state_of(node.inputs[i])
            if state is not None:
                yield node, state


def _misuse(graph: Graph, node: Node, state: Node) -> str:
    """Why a plain op may not use a state so; "" where it may."""
    rows = _rows_of(state)
    if cells_dimension(rows):
        return _misuse_of_cells(node, state)
    if rows != "S":
        return (
            f"the state {state.name!r}, {state.type}, belongs to no text, so that all texts would share it; "
            "wanted a first dimension of g.n_sequences, a row for each of them"
        )
    if node.op not in (get_rows, set_rows):
        return f"the state {state.name!r} has a row for each text; wanted g.rows or set_rows to use it"
    index = node.inputs[1 if node.op is get_rows else 2]
    if index.op is not input_leaf or index.name != "sequences":
        return (
            f"the state {state.name!r} has a row for each text; wanted g.sequences as indices, the rows of "
            f"the step's own texts; got %{index.name}"
        )
    if node.op is get_rows and is_unchanged(node.inputs[0]) and not _begins_with_zeros(graph, node):
        return (
            f"the state {state.name!r} is that of an earlier text where a text begins; wanted g.rows(state, "
            "g.sequences), which reads zeros there"
        )
    return ""


def _misuse_of_cells(node: Node, state: Node) -> str:
    if node.op is get_rows:
        version = node.inputs[0]
        own = changed_by(version) is not None and node.inputs[1] is version.inputs[-1]
        if not own:
            return (
                f"the cells of the state {state.name!r} are those of other texts too; wanted attention to "
                "read them, or a state of g.n_sequences rows"
            )
    if node.op is set_rows and not node.inputs[2].name.startswith("cells"):
        return f"wanted g.cells as indices of the state {state.name!r}; got %{node.inputs[2].name}"
    return ""


def _begins_with_zeros(graph: Graph, read: Node) -> bool:
    """Whether all readers of rows take others at position 0, as `g.rows` makes them."""
    readers = [node for node in graph.nodes if read in node.inputs]
    return read not in graph.outputs.values() and all(
        node.op is where and node.inputs[1] is read and read not in (node.inputs[0], node.inputs[2])
        and _is_position(node.inputs[0])
        for node in readers
    )  # fmt: skip


def _is_position(node: Node) -> bool:
    while node.op in (cast, reshape):
        node = node.inputs[0]
    return node.op is input_leaf and node.name == "positions"


def _rows_of(state: Node) -> str:
    rows = state.shape[0] if state.shape else 0
    return rows.name if isinstance(rows, Symbol) else ""
