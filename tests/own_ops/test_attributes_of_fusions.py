"""A fused op of one's own takes the place of nodes whose attributes it computes with, and of no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.elementwise import mul, scale
from graphml.ops import ROWS, OwnOp, f32, fused, op, sample
from graphml.passes.fusion import fuse, fusions
from graphml.passes.fusion_log import FusionLog

X = np.arange(16, dtype=np.float32).reshape(2, 8)
TWO = [sample(f32(ROWS, 8), f32(ROWS, 8))]


@pytest.fixture
def plus() -> OwnOp:
    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
    def plus(x: Any, *, c: float = 1.0) -> Any:
        return x + np.float32(c)

    return plus


def fused_by(made: OwnOp, build: Any) -> tuple[Graph, FusionLog]:
    g = Builder(max_tokens=2)
    graph = g.finish(y=build(g, g.input("x", F32, (g.n_tokens, 8))))
    after, log = fuse(graph, {made}, known=[fusions()[made.name]])
    assert np.array_equal(interpret(after, {"x": X})["y"], interpret(graph, {"x": X})["y"])
    return after, log


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.inputs]


def test_an_attribute_that_the_fused_op_lacks_has_to_be_that_of_its_decomposition(plus: OwnOp) -> None:
    @fused(find=lambda x, y: mul(plus(x), y), samples=TWO)
    def plus_mul(g: Any, x: Node, y: Node) -> Node:
        return g.mul(g.plus(x), y)

    after, log = fused_by(plus_mul, lambda g, x: g.mul(g.plus(x, c=5.0, name="five"), x))
    assert names(after) == ["plus", "mul"]
    assert [(one.at, one.reason) for one in log.refused] == [
        ("five", "five has c=5.0; plus_mul computes with 1.0")
    ]
    after, _ = fused_by(plus_mul, lambda g, x: g.mul(g.plus(x), x))
    assert names(after) == ["plus_mul"]


def test_attributes_of_one_name_have_to_be_equal(plus: OwnOp) -> None:
    @fused(find=lambda x: plus(plus(x)), samples=[sample(f32(ROWS, 8))])
    def plus_twice(g: Any, x: Node, *, c: float = 1.0) -> Node:
        return g.plus(g.plus(x, c=c), c=c)

    after, log = fused_by(plus_twice, lambda g, x: g.plus(g.plus(x, c=5.0, name="five")))
    assert names(after) == ["plus", "plus"]
    assert [one.reason for one in log.refused] == ["five has c=5.0; plus_twice computes with 1.0"]
    after, _ = fused_by(plus_twice, lambda g, x: g.plus(g.plus(x, c=5.0), c=5))
    assert names(after) == ["plus_twice"]
    assert after.outputs["y"].attributes["c"] == 5.0


def test_the_sign_of_zero_is_another_value(plus: OwnOp) -> None:
    @fused(find=lambda x: plus(plus(x)), samples=[sample(f32(ROWS, 8))])
    def plus_twice(g: Any, x: Node, *, c: float = 1.0) -> Node:
        return g.plus(g.plus(x, c=c), c=c)

    after, _ = fused_by(plus_twice, lambda g, x: g.plus(g.plus(x, c=0.0), c=-0.0))
    assert names(after) == ["plus", "plus"]


def test_a_second_pattern_may_not_lose_attributes_either(plus: OwnOp) -> None:
    """It does not find the decomposition, so defaults, required values and the op's own are compared."""

    @fused(
        find=(lambda x, y: mul(plus(x), y), lambda x, y: scale(mul(plus(x), y)).having(factor=1.0)),
        samples=TWO,
    )
    def plus_mul(g: Any, x: Node, y: Node) -> Node:
        return g.mul(g.plus(x), y)

    after, _ = fused_by(plus_mul, lambda g, x: g.scale(g.mul(g.plus(x), x), 1.0, 0.0))
    assert names(after) == ["plus_mul"]
    after, log = fused_by(plus_mul, lambda g, x: g.scale(g.mul(g.plus(x, c=2.0), x), 1.0, 3.0))
    assert names(after) == ["plus", "mul", "scale"]
    assert len(log.refused) == 2


def test_a_decomposition_may_have_values_of_its_own(plus: OwnOp) -> None:
    @fused(find=lambda x, y: mul(plus(plus(x)), y), samples=TWO)
    def plus_two(g: Any, x: Node, y: Node, *, c: float = 1.0) -> Node:
        return g.mul(g.plus(g.plus(x, c=2.0), c=c), y)

    after, _ = fused_by(plus_two, lambda g, x: g.mul(g.plus(g.plus(x, c=2.0), c=7.0), x))
    assert names(after) == ["plus_two"]
    after, _ = fused_by(plus_two, lambda g, x: g.mul(g.plus(g.plus(x, c=3.0), c=7.0), x))
    assert names(after) == ["plus", "plus", "mul"]


def test_operands_whose_storage_a_fused_op_takes_are_names(plus: OwnOp) -> None:
    def declare(inplace: Any) -> OwnOp:
        @fused(find=lambda x, y: mul(plus(x), y), samples=TWO, inplace=inplace)
        def plus_mul(g: Any, x: Node, y: Node) -> Node:
            return g.mul(g.plus(x), y)

        return plus_mul

    assert declare(["y"]).inplace == (1,)
    for wrong in (["z"], (1,), "x"):
        with pytest.raises(GraphError, match=r"op 'plus_mul' .*: inplace: wanted names of operands .*; got"):
            declare(wrong)
