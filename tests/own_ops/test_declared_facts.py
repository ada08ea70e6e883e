"""A declared op is a function, the only one of its name, and what it says of itself is true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphml.errors import GraphError
from graphml.ir import op_table
from graphml.ir.interpreter import interpret
from graphml.ir.own_op import OwnOp
from graphml.ops import ROWS, f32, op, sample
from tests.own_ops.test_declarations import builder, plain


@pytest.mark.parametrize("wrong", [np.tanh, len, type("Called", (), {"__call__": lambda self, x: x})()])
def test_what_is_no_function_declares_nothing(wrong: Any) -> None:
    with pytest.raises(GraphError, match=r"op 'mine': wanted a function, .*; got .*at .*test_declared_facts"):
        plain(name="mine")(wrong)


def test_two_definitions_of_one_line_are_refused() -> None:
    """A second op of a factory does not take the first one's name."""

    def made(factor: float) -> OwnOp:
        @plain()
        def scaled_by(x: Any) -> Any:
            return x * np.float32(factor)

        return scaled_by

    two = made(2.0)
    assert op_table.own_op("scaled_by") is two
    again = made(2.0)
    with pytest.raises(GraphError, match=r"op 'scaled_by' is declared twice at .*, with two definitions"):
        made(3.0)
    assert op_table.own_op("scaled_by") is again
    op_table.forget("scaled_by")
    assert op_table.own_op("scaled_by") is None
    assert made(3.0) is op_table.own_op("scaled_by")


def test_false_claims_are_refused() -> None:
    """The same checks as of graphml's own ops."""
    samples = [sample(f32(ROWS, 8), f32(ROWS, 8))]

    def declare(function: Any, **more: Any) -> OwnOp:
        op_table.forget("claims")
        return op(shape=lambda x, y: x, samples=samples, name="claims", **more)(function)

    declare(lambda x, y: x * y, rowwise=("x", "y"), commutative=True)
    with pytest.raises(GraphError, match=r"op 'claims' .*: sample 0: rowwise='x': rows .* make other rows"):
        declare(lambda x, y: np.cumsum(x, 0), rowwise=("x",))
    with pytest.raises(GraphError, match=r"op 'claims' .*: sample 0: commutative=True: its result is ano"):
        declare(lambda x, y: x - y, commutative=True)


def test_a_function_may_use_an_array_again() -> None:
    held = np.zeros((8, 16), np.float32)

    @plain()
    def reused(x: Any) -> Any:
        found = held[: len(x), : x.shape[1]]
        found[...] = x + 1
        return found

    g, x = builder()
    once = g.call(reused, x)
    graph = g.finish(a=once, b=g.call(reused, once))
    found = interpret(graph, {"x": np.ones((8, 16), np.float32)})
    assert (found["a"][0, 0], found["b"][0, 0]) == (2, 3)
