"""Types and ops by their names: as arguments, in comparisons, and what a wrong name is told."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import GraphError
from graphml.ir.dtype import F16, F32, I32, as_dtype, dtype
from graphml.ir.language import Builder
from graphml.ir.op import Term
from graphml.ir.ops.linear import mul_mat

NAMES: dict[str, list[Any]] = {
    "f32": ["f32", "F32", "float32", "fp32", np.float32, np.dtype("f4"), F32],
    "f16": ["half", "float16", np.float16, F16], "bf16": ["bfloat16", "bf16"],
    "i32": ["int32", np.int32, I32],
    "f64": ["float64", np.float64], "i8": ["int8", np.int8], "q4_0": ["q4_0", "Q4_0"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, every in NAMES.items() for value in every]
)
def test_a_type_is_known_by_its_names(name: str, value: Any) -> None:
    assert as_dtype(value) is dtype(name)
    assert dtype(name) == value
    assert (value == dtype(name)) is True
    assert dtype("i64") != value
    g = Builder()
    for make in (g.input, g.weight, g.state):
        assert make(f"{make.__name__}_x", value, (4, 32)).dtype is dtype(name)


@pytest.mark.parametrize("value", [float, int, bool, 3, None, "flaot32", np.complex64, "", "q4"])
def test_what_names_no_type_is_refused(value: Any) -> None:
    with pytest.raises(GraphError, match="dtype"):
        as_dtype(value)
    with pytest.raises(GraphError, match=r"argument 'dtype': wanted a dtype, as .*float32; got "):
        Builder().input("x", value, (4,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert value != F32


def test_a_cast_takes_a_type_by_its_names() -> None:
    g = Builder()
    x = g.input("x", "f32", (4,))
    for value in ("i32", "int32", np.int32, I32):
        assert g.cast(x, value).dtype is I32
    assert g.cast(x, np.float32) is x
    with pytest.raises(GraphError, match="wanted 'f32' or 'i32'; got 'f16'"):
        g.cast(x, "f16")


def test_an_op_equals_its_name() -> None:
    g = Builder()
    node = g.mul_mat(g.weight("w", "f32", (4, 8)), g.input("x", "f32", (2, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert node.op == "mul_mat"
        assert node.op in {"mul_mat", "add"}
        assert node.op != "add"
        assert mul_mat == node.op
        assert mul_mat != replace(mul_mat)  # another op of that name, as patches are
        assert {node.op: 1}["mul_mat"] == 1  # type: ignore[index]
    with pytest.warns(UserWarning, match="op == 'matmul': no op is called so; did you mean 'mul_mat'"):
        assert node.op != "matmul"
    with pytest.warns(UserWarning, match="dtype == 'flaot32': unknown dtype 'flaot32'"):
        assert node.dtype != "flaot32"


def test_an_op_called_with_a_node_names_the_method() -> None:
    g = Builder()
    x = g.input("x", "f32", (2, 8))
    assert isinstance(mul_mat("a", "b"), Term)
    with pytest.raises(GraphError, match=r"of nodes g.mul_mat\(...\) makes a node"):
        mul_mat(x, x)  # type: ignore[arg-type]
    for wrong in (
        lambda: graphml.op(lambda x: x),
        lambda: graphml.op(x),
        lambda: graphml.op(shape=lambda x: x),
    ):
        with pytest.raises(graphml.UsageError, match=r"op: wanted @op\(shape=lambda x: x, samples="):
            wrong()


def test_outputs_in_order_have_the_names_of_their_nodes() -> None:
    g = Builder()
    x = g.input("x", "f32", (2, 8))
    y = g.silu(x)
    assert [*g.finish(y).outputs] == ["silu"]
    assert [*g.finish(y, x=g.neg(x)).outputs] == ["silu", "x"]
    with pytest.raises(GraphError, match="two outputs are called 'silu'"):
        g.finish(y, silu=x)
    with pytest.raises(GraphError, match="wanted a node of this graph"):
        g.finish("silu")  # type: ignore[arg-type]


def test_inputs_in_order_are_those_that_have_no_name() -> None:
    g = Builder()
    a, b = (g.input(name, "f32", (2, 2)) for name in "ab")
    compiled = graphml.compile(g.finish(g.sub(a, b)), "reference")
    one, two = np.full((2, 2), 5.0, np.float32), np.full((2, 2), 3.0, np.float32)
    for found in (compiled(one, two), compiled(two, a=one), compiled(one, b=two), compiled(a=one, b=two)):
        assert found["sub"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    for call, said in (
        (lambda: compiled(one), r"inputs: wanted 2 in order \(a, b\), or names; got 1"),
        (lambda: compiled(one, two, two), "wanted 2 in order"),
        (lambda: compiled(one, a=one, b=two), r"wanted 0 in order \(none\)"),
        (lambda: compiled(one, two, c=two), "c: no input of the graph: wanted the inputs a, b"),
        (lambda: compiled(a=one), "b: is missing: wanted the inputs a, b"),
    ):
        with pytest.raises(graphml.UsageError, match=said):
            call()


def test_what_is_no_graph_yet_is_told_how_it_becomes_one() -> None:
    g = Builder()
    y = g.silu(g.input("x", "f32", (2, 8)))
    for source in (g, y):
        with pytest.raises(graphml.UsageError, match=r"graphml.compile\(g.finish\(y=NODE\)\).*such as %silu"):
            graphml.compile(source)  # type: ignore[arg-type]


def test_the_builder_needs_no_other_import() -> None:
    program = (
        "import graphml, numpy as np\n"
        "g = graphml.Builder()\n"
        "y = g.silu(g.input('x', 'f32', (1, 2)))\n"
        "print(graphml.compile(g.finish(y), 'reference')(np.zeros((1, 2))))\n"
        "print(graphml.ir.dtype.F32, graphml.ops.op is graphml.op, hasattr(graphml.ir, 'nothing'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "f32 True False"
