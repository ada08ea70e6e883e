"""Removes rows that no output needs: moves the gather of output rows from the logits towards the inputs.

An architecture computes every row, and of a prompt's rows only some have logits that are read. `f(x)[rows]`
is `f(x[rows])` for an op whose rows each depend on the same row of `x` (`Op.rowwise`), and `f(x)` need not be
computed if nothing else reads it. In a last layer these are all ops after attention. Knows ops by
their facts; no architecture.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from graphml.ir.builder import complete, infer_type
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.ops.index import get_rows
from graphml.ir.shape import Dim, bound


def leave_rows_out(graph: Graph, rows: Node, n_rows: Dim) -> Graph:
    """The graph with every `get_rows(x, rows)` as near to the inputs as possible.

    rows: i32 [O], a leaf; n_rows: of x, the tokens of the step. A table of another size is no such x. Where
    the step may return every row nothing is left out.
    """
    if bound(rows.shape[0]) == bound(n_rows):
        return graph
    chosen = {
        node
        for node in graph.nodes
        if node.op is get_rows and node.inputs[1] is rows and _has_rows(node.inputs[0], n_rows)
    }
    if not chosen:
        return graph
    return _Rewriting(graph, chosen, _moved(graph, chosen, n_rows), rows, n_rows).run()


def with_outputs(graph: Graph, more: Graph) -> Graph:
    """A graph after `leave_rows_out` with the outputs of another one before it, of the same builder.

    What both compute alike is computed once; what is computed for the chosen rows in one and for all in the
    other, in both: so that the first one's values keep their bits.
    """
    order, taken = dict.fromkeys(graph.nodes), {node.name for node in graph.nodes}
    new: dict[Node, Node] = {}
    for node in more.nodes:
        inputs = tuple(new[source] for source in node.inputs)
        if node not in order:
            name = f"{node.name}.every" if node.name in taken else node.name
            node_made = replace(node, inputs=inputs, name=name)
            order[node_made] = None
            new[node] = node_made
        else:
            new[node] = node
    return make_graph(order, {**graph.outputs, **{name: new[node] for name, node in more.outputs.items()}})


def _moved(graph: Graph, chosen: Collection[Node], n_rows: Dim) -> set[Node]:
    """The nodes that are computed for the chosen rows alone: those whose other rows are not read."""
    users, outputs = graph.users(), set(graph.outputs.values())
    by_row: dict[Node, list[Node]] = {}  # moved node -> the inputs that it reads row by row
    for node in reversed(graph.nodes):
        if (
            _has_rows(node, n_rows)
            and node not in outputs
            and _read_by_row(node, users[node], chosen, by_row)
        ):
            sources = _by_row(node, n_rows)
            if sources:
                by_row[node] = sources
    while True:
        stay = [
            node
            for node, sources in by_row.items()
            if not all(source in by_row or _can_be_chosen(source) for source in sources)
            or not _read_by_row(node, users[node], chosen, by_row)
        ]
        if not stay:
            return set(by_row)
        for node in stay:
            del by_row[node]


def _read_by_row(
    node: Node, readers: Sequence[Node], chosen: Collection[Node], by_row: Mapping[Node, Sequence[Node]]
) -> bool:
    """Whether only the chosen rows of a node are read: by the choice itself, or by nodes that are moved."""
    return all(
        node is reader.inputs[0] if reader in chosen else node in by_row.get(reader, ()) for reader in readers
    )


def _by_row(node: Node, n_rows: Dim) -> list[Node]:
    """The inputs whose rows each determine the same row of the node; none if the node is not row-wise."""
    if not _has_rows(node, n_rows):
        return []
    sources = [node.inputs[i] for i in node.op.rowwise if i < len(node.inputs)]
    sources = [source for source in sources if _has_rows(source, n_rows)]
    whole = [source for i, source in enumerate(node.inputs) if i not in node.op.rowwise]
    return [] if set(sources) & set(whole) else sources


def _has_rows(node: Node, n_rows: Dim) -> bool:
    return bool(node.shape) and node.shape[0] == n_rows


def _can_be_chosen(node: Node) -> bool:
    """Whether `get_rows` reads it; other values are moved themselves, or their readers stay."""
    return node.dtype is F32 and len(node.shape) > 1


class _Rewriting:
    """Rebuilds the graph node by node, with the moved nodes on the chosen rows."""

    def __init__(
        self, graph: Graph, chosen: Collection[Node], moved: Collection[Node], rows: Node, n_rows: Dim
    ) -> None:
        self._graph, self._chosen, self._moved = graph, chosen, moved
        self._rows, self._n_rows = rows, n_rows
        self._order: dict[Node, None] = {}
        self._whole: dict[Node, Node] = {}  # node -> its copy in the new graph
        self._picked: dict[Node, Node] = {}  # node -> its chosen rows there
        self._taken = {node.name for node in graph.nodes if node not in chosen}

    def run(self) -> Graph:
        for node in self._graph.nodes:
            if node in self._chosen:
                self._whole[node] = self._rows_of(node.inputs[0], node)
            elif node in self._moved:
                self._picked[node] = self._computed(node)
            else:
                inputs = tuple(self._whole[source] for source in node.inputs)
                self._whole[node] = self._put(node.on(inputs))
        outputs = {name: self._whole[node] for name, node in self._graph.outputs.items()}
        return make_graph(self._order, outputs)

    def _put(self, node: Node) -> Node:
        self._order[node] = None
        return node

    def _computed(self, node: Node) -> Node:
        by_row = _by_row(node, self._n_rows)
        inputs = tuple(
            self._rows_of(source, node) if source in by_row else self._whole[source] for source in node.inputs
        )
        kind = infer_type(node.op, [source.type for source in inputs], node.attributes)
        return self._put(replace(node, inputs=inputs, type=kind))

    def _rows_of(self, node: Node, reader: Node) -> Node:
        """The chosen rows of a value, by a `get_rows` in the reader's layer if it was not moved itself."""
        if node not in self._picked:
            rows = self._put(self._rows)
            inputs = self._whole[node], rows
            attributes = complete(get_rows, {"from_dtype": node.dtype.name})
            kind = infer_type(get_rows, [source.type for source in inputs], attributes)
            scope, dot, _ = reader.name.rpartition(".")
            name = self._unique(f"{scope}{dot}{node.name.rpartition('.')[2]}_rows")
            self._picked[node] = self._put(Node(get_rows, inputs, kind, name, attributes, node.source))
        return self._picked[node]

    def _unique(self, name: str) -> str:
        candidate, count = name, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate
