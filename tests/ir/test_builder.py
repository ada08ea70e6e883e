"""Building graphs: names, scopes, leaves, attributes, and errors that point at the user's line."""

from __future__ import annotations

import inspect
import re

import pytest

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.language import Builder
from graphml.ir.ops.elementwise import add, scale
from graphml.ir.ops.layout import reshape
from graphml.ir.ops.linear import dequantize
from graphml.ir.shape import Symbol
from tests.looped import looped


def line() -> int:
    """The line that this is called from."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_nodes_are_named_after_their_op_their_scope_and_their_count() -> None:
    g = Builder()
    x = g.input("x", F32, (4,))
    with g.scope("layers.0"), g.scope("ffn"):
        names = [g.silu(x).name, g.silu(x).name, g.silu(x, name="gate").name, g.silu(x, name="gate").name]
    assert names == [f"layers.0.ffn.{name}" for name in ("silu", "silu_1", "gate", "gate_1")]
    assert g.silu(x).name == "silu"


def test_a_scope_ends_with_an_error_too() -> None:
    g = Builder()
    x = g.input("x", F32, (4,))
    with pytest.raises(KeyError), g.scope("broken"):
        raise KeyError
    assert g.silu(x).name == "silu"


def test_names_are_unique_even_where_someone_took_the_counted_one() -> None:
    g = Builder()
    x = g.input("x", F32, (4,))
    names = [g.silu(x, name=name).name for name in ("a_1", "a", "a", "a", "a_1", "a_1_1")]
    assert len(set(names)) == len(names)


def test_a_leaf_asked_for_twice_is_the_same_node_in_any_scope() -> None:
    g = Builder()
    first = g.weight("token_embd.weight", F32, (8, 4))
    with g.scope("layers.0"):
        assert g.weight("token_embd.weight", F32, (8, 4)) is first
        assert g.positions is g.positions
        assert g.input("mask", F32, (4,)).name == "mask"
    assert [node.name for node in g.finish(x=first).nodes] == ["token_embd.weight"]


@pytest.mark.parametrize(
    ("kind", "dtype", "shape"), [("weight", F32, (8, 5)), ("weight", I32, (8, 4)), ("input", F32, (8, 4))]
)
def test_a_leaf_asked_for_differently_is_an_error(kind: str, dtype: object, shape: tuple[int, ...]) -> None:
    g = Builder()
    g.weight("w", F32, (8, 4))
    with pytest.raises(GraphError, match=r"'w' is weight f32\[8, 4\] already; got"):
        getattr(g, kind)("w", dtype, shape)


def test_a_leaf_cannot_lose_its_name_to_a_node() -> None:
    g = Builder()
    g.silu(g.input("x", F32, (4,)), name="w")
    with pytest.raises(GraphError, match="'w'"):
        g.weight("w", F32, (4,))


def test_attributes_have_defaults_and_are_checked() -> None:
    g = Builder()
    x = g.input("x", F32, (4,))
    assert dict(g.call(scale, x, factor=2.0).attributes) == {"factor": 2.0, "offset": 0.0}
    with pytest.raises(
        GraphError, match=r"\[scale\] has no attribute 'faktor'; it has \['factor', 'offset'\]"
    ):
        g.call(scale, x, faktor=2.0)
    with pytest.raises(GraphError, match=r"\[dequantize\] wanted attribute 'from_dtype'; got \[\]"):
        g.call(dequantize, x)
    with pytest.raises(GraphError, match=r"\[reshape\] attribute 'tail': wanted whole numbers; got 'x'"):
        g.call(reshape, x, tail="x")
    with pytest.raises(TypeError):
        g.call(scale, x).attributes["factor"] = 3.0  # type: ignore[index]  # it cannot be written


def test_a_shape_error_names_the_op_both_shapes_the_scope_and_the_users_line() -> None:
    g = Builder(max_tokens=512)
    x = g.input("x", F32, (g.n_tokens, 6))
    w = g.weight("w", F32, (8, 5))
    wrong = line() + 2
    with pytest.raises(ShapeError) as caught, g.scope("layers.3"):
        g.mul_mat(w, x)
    text = str(caught.value)
    assert text.startswith("[mul_mat] ")
    assert "f32[8, 5]" in text
    assert "f32[T<=512, 6]" in text
    assert "in layers.3" in text
    assert text.endswith(f"(at {__file__}:{wrong})")


def test_the_line_is_the_users_through_the_helpers_of_the_framework() -> None:
    """`attend` makes several nodes through methods of the builder; all stand where the user called it."""
    g = Builder()
    x = g.input("x", F32, (g.n_tokens, 2, 4))
    here = line() + 1
    y = g.attend(x, x, x, layer=0, scale=1.0)
    graph = g.finish(y=y)
    sources = {node.source.line for node in graph.nodes if node.source and node.name != "x"}
    assert sources == {here}
    assert {node.source.file for node in graph.nodes if node.source} == {__file__}


@looped("name", ["add", "sub", "mul", "div"])
def test_every_two_operand_shape_error_shows_both(name: str) -> None:
    g = Builder()
    a, b = g.input("a", F32, (3, 4)), g.input("b", F32, (3, 5))
    with pytest.raises(ShapeError, match=re.escape(f"[{name}]") + r".*f32\[3, 4\].*f32\[3, 5\]"):
        getattr(g, name)(a, b)


def test_norms_and_products_put_the_name_on_the_last_node() -> None:
    g = Builder()
    x, w = g.input("x", F32, (g.n_tokens, 4)), g.weight("w", F32, (4,))
    assert g.rms_norm(x, None, 1e-5, "a").name == "a"
    assert g.rms_norm(x, w, 1e-5, "b").op.name == "mul"
    named = [
        g.layer_norm(x, *parts, 1e-5, f"n{i}") for i, parts in enumerate([(None, None), (w, None), (w, w)])
    ]
    assert [node.name for node in named] == ["n0", "n1", "n2"]
    assert [node.op.name for node in named] == ["layer_norm", "mul", "add"]


def test_only_what_outputs_or_states_need_is_kept() -> None:
    g = Builder(max_tokens=3)
    x = g.input("x", F32, (g.n_tokens, 2, 4))
    g.silu(x)
    g.attend(x, x, x, layer=0, scale=1.0)
    graph = g.finish(y=g.tanh(x))
    assert [node.op.name for node in graph.nodes if node.op.family != "leaf"] == [
        "set_rows",
        "set_rows",
        "tanh",
    ]
    assert set(graph.leaves("state")) == {"cache.0.k", "cache.0.v"}
    assert graph.symbols()["T"] == Symbol("T", 3)
    assert graph.node("tanh") is graph.outputs["y"]
    assert graph.users()[x].count(graph.outputs["y"]) == 1
    with pytest.raises(KeyError):
        graph.node("silu")


def test_a_node_shows_its_type_and_inputs() -> None:
    g = Builder(max_tokens=3)
    x = g.input("x", F32, (g.n_tokens,))
    assert repr(g.call(add, x, x)) == "%add: f32[T<=3] = add(%x, %x)"
