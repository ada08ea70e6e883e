"""The graph that moves cells of a cache: rows of each state that a step writes by cell, to other cells.

Keys that rotate with their positions are rotated on by the difference of positions, by the same `rope` with
the same table (context shift: `build_graph_shift` in llama.cpp's `src/llama-kv-cache.cpp`). What a graph does
to keys between rotating and writing them (a norm, its weights) is left out, as there; a Walsh-Hadamard
transform, the last of it, is undone before and made again. The table's magnitude is left out too, else YaRN's
keys would grow with every move: cosines and sines alone rotate.

Derived from the graph of a step, so that backends run it and no architecture knows of it. Knows ops by name;
nothing of sequences or blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphml.errors import GraphError
from graphml.ir.builder import BaseBuilder
from graphml.ir.dtype import I32
from graphml.ir.graph import Graph
from graphml.ir.long_texts import long_inputs
from graphml.ir.node import Node
from graphml.ir.op import Type, integer, number
from graphml.ir.ops.compressed import compress_rows
from graphml.ir.ops.index import get_rows, set_rows
from graphml.ir.ops.layout import columns, concat
from graphml.ir.ops.leaf import input_leaf, weight_leaf
from graphml.ir.ops.position import magnitude, rope, rope_table
from graphml.ir.ops.walsh_hadamard import walsh_hadamard
from graphml.ir.plain_states import plain_states
from graphml.ir.shape import Symbol, fixed

SOURCES, TARGETS, DIFFERENCES = "source_cells", "target_cells", "differences"
READ_AHEAD = 16
"""States whose rows are read before any is written, so that threads meet once for all; rows take memory."""
_THROUGH = ("rms_norm", "l2_norm", "mul", "repeat", "scale")  # what may be between `rope` and the write
_MIXTURE = ("add", "sub", "mul")
_MIXING = ("leaf", "linear", "attention")  # families of ops whose results have no positions of their own


@dataclass(frozen=True)
class Rotated:
    """Which columns of a state's rows are rotated, and by which node; `first` is the first of them.

    block: of the Hadamard transform that the rotated rows are kept as; 0 for none.
    """

    rope: Node
    first: int
    block: int = 0


@dataclass(frozen=True)
class CellMoves:
    """graph: moves rows from `source_cells` to `target_cells`, i32 [T], positions by `differences`, i32 [T].

    raw: the states that the graph leaves out, since their rows move as they are: quantised ones, which are
    not to be encoded again.
    """

    graph: Graph
    raw: tuple[str, ...]


def written_cells(graph: Graph, cells: str | None = None) -> Iterator[Node]:
    """The nodes that write rows of a step into cells, those of an input of this name; None: all."""
    for node in graph.nodes:
        if node.op is set_rows and cells in (None, node.inputs[2].name):
            yield node


def why_not_shifted(graph: Graph) -> str | None:
    """Why positions in the cells of this step's graph cannot be moved; None where they can."""
    changed = [node.inputs[node.op.writes or 0] for node in graph.nodes if node.op.recurrent]
    for state in (*changed, *plain_states(graph)):
        return f"{state.name} is a state that all earlier tokens have changed"
    for node in graph.nodes:
        if node.op is compress_rows:
            return f"{node.name} is made of groups of tokens that begin at fixed positions"
    try:
        for node in written_cells(graph):
            _rotated(node.inputs[1])
    except GraphError as error:
        return str(error)
    return None


def cell_moves(
    graph: Graph, max_rows: int, rotates: bool, only: frozenset[str] | None = None, cells: str = "cells"
) -> CellMoves:
    """The moves of what a step's graph writes, at most `max_rows` cells at a time.

    rotates: keys are rotated; else all rows move as they are. only: names of the states; None: all. cells:
    the input that says where they are written.
    """
    builder, raw, n_rows = BaseBuilder(), [], Symbol("T", max_rows)
    read: list[tuple[Node, Node, Node]] = []  # states, rows, targets, which are not written yet

    def write() -> None:
        for kept, rows, target in read:
            builder.record(set_rows, kept, rows, target, to_dtype=kept.dtype.name, distinct=True)
        read.clear()

    for node in written_cells(graph, cells):
        state = node.inputs[0]
        if only is not None and state.name not in only:
            continue
        rotated = _rotated(node.inputs[1]) if rotates else None
        if rotated is None and state.dtype.is_format:
            raw.append(state.name)
            continue
        source, target = (builder.leaf(input_leaf, name, Type(I32, (n_rows,))) for name in (SOURCES, TARGETS))
        kept = builder.leaf(state.op, state.name, state.type)
        rows = builder.record(get_rows, kept, source, from_dtype=state.dtype.name)
        if rotated is not None:
            rows = _rotate(builder, rows, rotated)
        read.append((kept, rows, target))
        if len(read) == READ_AHEAD:
            write()
    write()
    return CellMoves(builder.finish(), tuple(raw))


def _rotated(x: Node, known: dict[Node, Rotated | None] | None = None) -> Rotated | None:
    """How a written value was rotated; GraphError where that cannot be done again to the written rows."""
    known = {} if known is None else known
    if x not in known:
        known[x] = None if x.op.family in _MIXING else _rotated_before(x, known)
    return known[x]


def _rotated_before(x: Node, known: dict[Node, Rotated | None]) -> Rotated | None:
    if x.op is rope:
        return Rotated(x, 0)
    origins = [
        (i, origin)
        for i, origin in enumerate(_rotated(source, known) for source in x.inputs)
        if origin is not None
    ]
    if not origins:
        return None
    i, origin = origins[0]
    if origin.block:
        raise GraphError(f"{x.name} is computed from transformed values by {x.op.name}")
    if x.op is walsh_hadamard:
        return replace(origin, block=integer(x.attributes, "block"))
    if x.op is concat and len(origins) == 1:
        return Rotated(origin.rope, origin.first + sum(fixed(left.shape[-1]) for left in x.inputs[:i]))
    if x.op.name not in _THROUGH or len(origins) > 1:
        raise GraphError(f"{x.name} is computed from rotated values by {x.op.name}")
    return origin


def _rotate(builder: BaseBuilder, rows: Node, rotated: Rotated) -> Node:
    """The rows, of which the rotated columns are rotated by the differences."""
    if rotated.block:  # its own inverse
        rows = builder.record(walsh_hadamard, rows, block=rotated.block)
        rows = _rotate(builder, rows, replace(rotated, block=0))
        return builder.record(walsh_hadamard, rows, block=rotated.block)
    table = _table(builder, rotated.rope.inputs[1], rows.shape[0])
    mode, width = rotated.rope.attributes["mode"], fixed(rows.shape[-1])
    first, end = rotated.first, rotated.first + fixed(rotated.rope.shape[-1])
    middle = rows if end - first == width else builder.record(columns, rows, start=first, stop=end)
    middle = builder.record(rope, middle, table, mode=mode)
    if first:
        middle = builder.record(concat, builder.record(columns, rows, start=0, stop=first), middle)
    if end < width:
        middle = builder.record(concat, middle, builder.record(columns, rows, start=end, stop=width))
    return middle


def _table(builder: BaseBuilder, table: Node, n_rows: object) -> Node:
    """A table of cosines and sines, of the differences and without its magnitude; one for all layers.

    Of two tables that are mixed by row (`ir.long_texts`) the same mixture.
    """
    assert isinstance(n_rows, Symbol)
    for node in builder.nodes:
        if node.op is table.op and node.name == table.name:
            return node
    if long_inputs([table.name]):
        return builder.leaf(input_leaf, table.name, Type(table.dtype, (n_rows, *table.shape[1:])))
    if table.op.name in _MIXTURE:
        parts = [_table(builder, part, n_rows) for part in table.inputs]
        return builder.record(table.op, *parts, name=table.name)
    if table.op is not rope_table:
        raise GraphError(f"{table.name} is no table of positions")
    differences = builder.leaf(input_leaf, DIFFERENCES, Type(I32, (n_rows,)))
    factors = [_constant(builder, factor) for factor in table.inputs[1:]]
    attributes = dict(table.attributes)
    attributes["attn_factor"] = number(attributes, "attn_factor") / magnitude(table.attributes)
    return builder.record(rope_table, differences, *factors, name=table.name, **attributes)


def _constant(builder: BaseBuilder, node: Node) -> Node:
    """A value that depends on weights alone, once more."""
    if node.op is weight_leaf:
        return builder.leaf(node.op, node.name, node.type)
    if node.op.family == "leaf":
        raise GraphError(f"the factors of the positions depend on {node.name}")
    inputs = [_constant(builder, source) for source in node.inputs]
    return builder.record(node.op, *inputs, name=node.name, **node.attributes)
