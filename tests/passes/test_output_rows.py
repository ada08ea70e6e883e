"""Rows that no output needs are left out: what moves, what stays, and that the values are the same."""

from __future__ import annotations

import numpy as np

from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Op, Sample
from graphml.ir.own_samples import by_row, not_by_row
from graphml.ir.shape import Symbol
from graphml.passes.output_rows import leave_rows_out
from tests.graphs import PLAIN, arrays_of, full_attributes, largest, sample_ids
from tests.looped import looped

T, D, ROWS = 6, 8, np.array([4, 1], np.int32)


ROWWISE = [(op, sample) for op, sample in PLAIN if by_row(op, sample.inputs, full_attributes(op, sample))]


def builder() -> Builder:
    return Builder(T, 2)


def rows(node: Node) -> int | Symbol:
    return node.shape[0]


def checked(g: Builder, **outputs: Node) -> Graph:
    """The graph with rows left out; its values are those of the graph as it was built."""
    built = g.finish(**outputs)
    found = leave_rows_out(built, g.output_rows, g.n_tokens)
    generator = np.random.default_rng(0)
    arrays = {
        name: ROWS if node is g.output_rows else generator.standard_normal((T, D), np.float32)
        for name, node in built.leaves("input").items()
    }
    for name, node in built.leaves("weight").items():
        arrays[name] = generator.standard_normal([int(dim) for dim in node.shape], np.float32)
    want, got = interpret(built, arrays), interpret(found, arrays)
    for name in outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, atol=1e-6)
    return found


def x_of(g: Builder, name: str = "x") -> Node:
    return g.input(name, F32, (g.n_tokens, D))


def test_what_follows_the_last_reader_of_all_rows_moves() -> None:
    g = builder()
    x = x_of(g)
    normed = g.rms_norm(x, g.weight("w", F32, (D,)), 1e-5, "normed")
    product = g.mul_mat(g.weight("m", F32, (3, D)), normed, "product")
    found = checked(g, y=g.select_output_rows(g.softmax(product)))
    assert rows(found.node("product")) == rows(found.node("normed")) == g.n_outputs
    assert [node.inputs[0].name for node in found.nodes if node.op.name == "get_rows"] == ["x"]


def test_what_others_read_stays() -> None:
    g = builder()
    read = g.silu(x_of(g), "read")
    kept = g.sqr(read, "kept")
    found = checked(g, y=g.select_output_rows(g.add(read, kept)), all_rows=g.silu(kept))
    assert rows(found.node("kept")) == rows(found.node("read")) == g.n_tokens
    assert sum(node.op.name == "get_rows" for node in found.nodes) == 2


def test_an_output_stays() -> None:
    g = builder()
    shown = g.silu(x_of(g), "shown")
    found = checked(g, y=g.select_output_rows(g.sqr(shown)), shown=shown)
    assert rows(found.node("shown")) == g.n_tokens


def test_ids_that_are_chosen_by_row_move_with_what_reads_them() -> None:
    g = builder()
    scores = g.softmax(x_of(g), "scores")
    ids = g.top_k(scores, 2, "ids")
    found = checked(g, y=g.select_output_rows(g.gather(scores, ids)))
    assert rows(found.node("ids")) == g.n_outputs


def test_ids_that_others_read_keep_their_reader() -> None:
    g = builder()
    scores = g.softmax(x_of(g), "scores")
    ids = g.top_k(scores, 2, "ids")
    found = checked(g, y=g.select_output_rows(g.gather(scores, ids, "gathered")), ids=ids)
    assert rows(found.node("gathered")) == g.n_tokens


def test_a_table_is_read_whole() -> None:
    g = builder()
    table = g.silu(x_of(g, "other"), "table")
    ids = g.top_k(g.columns(x_of(g), 0, T), 1)
    found = checked(g, y=g.select_output_rows(g.rows(table, ids)))
    assert rows(found.node("table")) == g.n_tokens


def test_rows_of_a_table_of_another_size_are_read_as_they_are() -> None:
    g = builder()
    x, table = g.silu(x_of(g), "moved"), g.weight("table", F32, (9, D))
    found = checked(g, y=g.select_output_rows(x), of_table=g.rows(table, g.output_rows))
    assert rows(found.node("moved")) == g.n_outputs


def test_where_every_row_is_returned_nothing_moves() -> None:
    g = Builder(T, T)
    built = g.finish(y=g.rows(g.silu(x_of(g)), g.output_rows))
    assert leave_rows_out(built, g.output_rows, g.n_tokens) is built


def test_without_a_choice_nothing_changes() -> None:
    g = builder()
    built = g.finish(y=g.silu(x_of(g)))
    assert leave_rows_out(built, g.output_rows, g.n_tokens) is built


@looped(("op", "sample"), ROWWISE, ids=sample_ids(ROWWISE))
def test_an_op_that_says_so_is_by_row(op: Op, sample: Sample) -> None:
    dims = dict.fromkeys(largest(sample.inputs), 5)
    attributes, arrays = full_attributes(op, sample), arrays_of(sample, dims)
    assert not not_by_row(op, by_row(op, sample.inputs, attributes), arrays, attributes)


def test_every_op_that_says_so_is_tried() -> None:
    assert {op for op, _ in ROWWISE} == {op for op, _ in PLAIN if op.rowwise}
    assert len({op for op, _ in ROWWISE}) > 25
