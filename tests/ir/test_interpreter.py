"""The interpreter: graphs mean what their ops mean."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.fused import decomposition, fused_op
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Op, Sample, Type
from graphml.passes.fusion import fusions
from tests.graphs import ALL, PLAIN, arrays_of, full_attributes, largest, sample_graph, sample_ids
from tests.looped import looped

FUSED = [(op, sample) for op, sample in ALL if op.decompose is not None]


@looped(("op", "sample"), PLAIN, ids=sample_ids(PLAIN))
def test_a_graph_of_one_op_is_its_reference(op: Op, sample: Sample) -> None:
    recipe = sample_graph(op, sample)
    arrays = recipe.arrays()
    operands = [arrays[f"operand_{i}"].copy() for i in range(len(sample.inputs))]
    got = interpret(recipe.graph, arrays)["result"]
    assert op.reference is not None
    np.testing.assert_array_equal(got, op.reference(operands, full_attributes(op, sample)))


@looped(("op", "sample"), FUSED, ids=sample_ids(FUSED))
def test_a_fused_op_is_its_decomposition(op: Op, sample: Sample) -> None:
    arrays = arrays_of(sample, largest(sample.inputs))
    named = {f"operand_{i}": array for i, array in enumerate(arrays)}
    plain = decomposition(op, sample.inputs, full_attributes(op, sample))
    assert all(node.op.decompose is None for node in plain.nodes)
    graphs = sample_graph(op, sample).graph, plain
    # A recurrent op changes the array of its state.
    got, want = (interpret(graph, {name: one.copy() for name, one in named.items()}) for graph in graphs)
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


def test_layers_of_a_kind_share_a_decomposition() -> None:
    """One and True, equal as keys, do not: a decomposition may tell them apart."""
    told: list[object] = []

    def decompose(g: Builder, x: Node, factor: object) -> Node:
        told.append(factor)
        return g.tanh(x)

    mine = fused_op("mine", decompose, list, {"factor": 1})
    kinds = [Type(F32, (2, 3)), Type(F32, (2, 4))]
    first, *others = [decomposition(mine, [kinds[0]], {"factor": one}) for one in (1, 1, True, 1.0)]
    assert others[0] is first
    assert decomposition(mine, [kinds[1]], {"factor": 1}) is not first
    assert list(map(repr, told)) == ["1", "True", "1.0", "1"]


def test_every_fused_op_is_covered() -> None:
    assert {fusion.replace.name for fusion in fusions().values()} == {op.name for op, _ in FUSED}


def test_a_composition_is_computed_in_order_and_observed() -> None:
    g = Builder()
    x, w = g.input("x", F32, (2, 3)), g.weight("w", F32, (2, 3))
    graph = g.finish(a=g.mul(g.tanh(x), w), b=g.add(x, w))
    arrays = {"x": np.full((2, 3), 0.5, np.float32), "w": np.full((2, 3), 2.0, np.float32)}
    seen = {}
    out = interpret(graph, arrays, lambda node, array: seen.update({node.name: array}))
    np.testing.assert_allclose(out["a"], np.tanh(0.5) * 2, rtol=1e-6)
    np.testing.assert_array_equal(out["b"], np.full((2, 3), 2.5))
    assert list(seen) == ["x", "w", "tanh", "mul", "add"]
    assert seen["mul"] is out["a"]


def test_a_state_is_changed_in_place_and_kept() -> None:
    g = Builder(max_tokens=2, max_cells=8, cache_dtype="f32")
    x = g.input("x", F32, (g.n_tokens, 1, 4))
    graph = g.finish(y=g.attend(x, x, x, layer=0, scale=1.0))
    states = {name: np.zeros((8, 1, 4), np.float32) for name in ("cache.0.k", "cache.0.v")}
    for t, cell in enumerate((5, 3)):
        leaves = {
            "x": np.full((1, 1, 4), t + 1, np.float32), "positions": np.array([t], np.int32),
            "sequences": np.zeros(1, np.int32), "cells": np.array([cell], np.int32),
            "block_table": np.zeros((1, 1), np.int32), **states,
        }  # fmt: skip
        interpret(graph, leaves)
    np.testing.assert_array_equal(states["cache.0.k"][:, 0, 0], [0, 0, 0, 2, 0, 1, 0, 0])


def test_a_missing_leaf_is_named() -> None:
    g = Builder()
    graph = g.finish(y=g.tanh(g.weight("blk.0.w", F32, (2,))))
    with pytest.raises(GraphError, match=r"no value for weight 'blk\.0\.w'"):
        interpret(graph, {})
