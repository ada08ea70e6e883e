"""Where symbols and states may be: a graph without one meaning is refused with the line that made it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphml.errors import GraphError, ShapeError
from graphml.ir import text
from graphml.ir.dtype import F32, I32
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Attributes, Op
from graphml.ir.ops.index import set_rows
from graphml.ir.ops.rules import same_shape, singles
from graphml.ir.verify import verify
from graphml.passes.fusion import all_ops
from tests.looped import looped

HERE = __file__.rpartition("/")[2]


def builder() -> tuple[Builder, Node]:
    g = Builder(max_tokens=8, max_outputs=4)
    return g, g.input("x", F32, (g.n_tokens, 4))


MOVED = {
    "permute": lambda g, x: g.permute(x, 1, 0),
    "input": lambda g, x: g.input("y", F32, (3, g.n_tokens)),
    "index": lambda g, x: g.rows(x, g.input("ids", I32, (2, g.n_tokens))),
    "weight": lambda g, x: g.weight("w", F32, (g.n_tokens, 4)),
    "state": lambda g, x: g.state("s", F32, (4, g.n_sequences)),
}
ALONG = {
    "softmax": lambda g, x: g.softmax(x),
    "sum_rows": lambda g, x: g.sum_rows(x),
    "rms_norm": lambda g, x: g.rms_norm(x, None, 1e-5),
    "cumsum": lambda g, x: g.cumsum(x),
    "max_rows": lambda g, x: g.max_rows(x),
    "permute": lambda g, x: g.permute(x, 0),
}
Make = Callable[[Builder, Node], Node]


@looped("name", MOVED)
def test_a_symbol_is_the_first_dimension(name: str) -> None:
    make: Make = MOVED[name]
    with pytest.raises(ShapeError, match=rf"(T|S)<=\d is known only at run time; .*{HERE}:"):
        make(*builder())


@looped("name", ALONG)
def test_nothing_works_along_the_tokens(name: str) -> None:
    g, _ = builder()
    each = g.input("each", F32, (g.n_tokens,))
    make: Make = ALONG[name]
    with pytest.raises(ShapeError, match=rf"operand 0 is %each, .*along dimension T<=8, .*{HERE}:"):
        make(g, each)
    assert verify(g.finish(y=make(g, g.reshape(g.silu(each), 1))) if name != "permute" else g.finish(y=each))


def test_a_text_with_a_moved_symbol_is_refused_too() -> None:
    g, x = builder()
    written = text.write(g.finish(y=g.permute(g.reshape(x, 2, 2), 0, 2, 1)))
    moved = written.replace("(0, 2, 1)", "(1, 0, 2)").replace(
        "f32[T<=8, 2, 2] = permute", "f32[2, T<=8, 2] = permute"
    )
    assert moved != written
    with pytest.raises(ShapeError, match=r"permute: \[permute\] f32\[2, T<=8, 2\]: dimension T<=8"):
        verify(text.parse(moved, all_ops()))


def test_two_writers_of_a_state_are_refused_with_both_lines() -> None:
    g, x = builder()
    heads = g.heads(x, 2)
    g.attend(heads, heads, heads, layer=0, scale=1.0)
    with pytest.raises(
        GraphError, match=rf"'cache.0.k' after .* \(.*{HERE}:\d+\): .*another layer number.*{HERE}:"
    ):
        g.attend(heads, heads, heads, layer=0, scale=1.0)
    weight = g.weight("w", F32, (4, 3))
    g.ssm_conv(x, weight, None, layer=1)
    with pytest.raises(GraphError, match=r"'cache.1.conv' after %ssm_conv .*another what="):
        g.ssm_conv(x, weight, None, layer=1)
    g.ssm_conv(x, weight, None, layer=1, what="conv_k")
    verify(g.finish(y=x))


def test_a_state_is_read_before_its_change_or_by_its_new_version() -> None:
    g, x = builder()
    memory = g.state("memory", F32, (g.n_sequences, 4))
    before = g.rows(memory, g.sequences)
    changed = g.call(set_rows, memory, x, g.sequences, name="changed")
    with pytest.raises(
        GraphError, match=r"reads the state 'memory' after %changed .*; %changed is the changed state"
    ):
        g.rows(memory, g.sequences)
    graph = verify(g.finish(before=before, after=g.rows(changed, g.sequences)))
    leaves = {"x": np.ones((1, 4), np.float32), "memory": np.zeros((1, 4), np.float32)}
    found = interpret(graph, {**leaves, **dict.fromkeys(("sequences", "positions"), np.zeros(1, np.int32))})
    assert found["after"].tolist() == [[1.0] * 4]
    assert found["before"].tolist() == [[0.0] * 4]


@looped("make", [lambda g, s: g.silu(s), lambda g, s: g.reshape(s, 2, 2), lambda g, s: g.sum_rows(s)])
def test_other_ops_read_no_state_and_no_view_of_one(make: Make) -> None:
    g, _ = builder()
    memory = g.state("memory", F32, (g.n_sequences, 4))
    with pytest.raises(GraphError, match=r"operand 0; got %memory, which is the state 'memory': .*g\.rows"):
        make(g, memory)


def test_a_reference_that_changes_its_operand_is_told() -> None:
    def cut(inputs: list[Array], at: Attributes) -> Array:
        (x,) = inputs
        x[x < 0] = 0
        return x

    step = Op("step", "elementwise", infer=same_shape, reference=cut, samples=singles)
    g, x = builder()
    graph = g.finish(y=g.call(step, g.neg(x)))
    with pytest.raises(
        GraphError, match="%step: the reference of 'step' changes an operand; wanted a new array"
    ):
        interpret(graph, {"x": np.ones((2, 4), np.float32)})
