"""Constants: what they may hold, their text form, and programs that read them on every backend."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from graphml.backend import Backend, no_progress
from graphml.compiler.compile import compile_graph
from graphml.compiler.options import CompileOptions
from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.ops import table
from graphml.ir.text import parse, write
from graphml.ir.verify import verify
from graphml.loading import discovery
from tests.looped import looped

HELD = {
    "2.5": ([2.5], "f32[1]"),
    "3": ([3], "i32[1]"),
    "True": ([1.0], "f32[1]"),
    "[[1, 2, 3], [4, 5, 6]]": ([[1, 2, 3], [4, 5, 6]], "i32[2, 3]"),
    "[1, 2.5]": ([1, 2.5], "f32[2]"),
    "np.array([0.1, np.inf, -np.inf, np.nan])": ([np.float32(0.1), np.inf, -np.inf, np.nan], "f32[4]"),
    "np.float16(0.1)": ([np.float32(np.float16(0.1))], "f32[1]"),
    "np.array([True, False])": ([1, 0], "f32[2]"),
    "np.uint8([[255]])": ([[255]], "i32[1, 1]"),
}
REFUSED = {
    "2**31": r"\[g\.constant\] wanted numbers of 32 bits; got 2147483648",
    "[1e39, 0.5]": r"\[g\.constant\] wanted numbers that float32 holds; got 1e\+39",
    "[]": r"wanted a number, an array or nested lists of 1 to 65536 numbers; got a list of 0",
    "[[1, 2], [3]]": r"argument 'values': wanted a number",
    "'1'": r"argument 'values': wanted a number, .*; got '1'",
    "1j": r"argument 'values': wanted a number",
    "np.zeros(65537)": r"argument 'values': wanted .* 1 to 65536 numbers; got a NumPy array float64\[65537\]",
    "[g.positions, 1]": r"argument 'values': wanted a number",
    "g.positions": r"argument 'values': wanted a number, .*; got the node %positions",
}


@looped("values", HELD)
def test_what_it_holds(values: str) -> None:
    wanted, kind = HELD[values]
    g = Builder()
    node = g.constant(eval(values))
    assert repr(node.type) == kind
    made = interpret(g.finish(y=node), {})["y"]
    np.testing.assert_array_equal(made, np.array(wanted, made.dtype))


@looped("values", REFUSED)
def test_what_it_refuses(values: str) -> None:
    g = Builder()
    with pytest.raises(GraphError, match=REFUSED[values]):
        g.constant(eval(values))


def many() -> Graph:
    """A graph with constants of both dtypes, one of them as large as they may be."""
    g = Builder(max_tokens=8)
    x = g.input("x", F32, (g.n_tokens, 6))
    position = g.reshape(g.cast(g.positions, "f32"), 1)
    scaled = g.add(g.mul(x, g.constant([0.1, np.inf, 1e-40, -2.0, 0.0, 7.0])), position)
    chosen = g.where(g.less(position, g.constant(3.0)), scaled, g.constant(np.arange(6.0)))
    picked = g.gather(g.constant(np.arange(18.0).reshape(3, 6)), g.constant([[1, 2], [0, 0], [5, 4]]))
    turned = g.rope(g.reshape(x, 1, 6), g.rope_table(6, factors=g.constant([1.0, 2.0, 4.0])), "neox")
    large = g.constant(np.linspace(-1, 1, 65_536).reshape(16, 4096), name="large")
    return g.finish(y=chosen, picked=picked, turned=turned, sums=g.sum_rows(large), itself=large)


def test_the_text_has_every_number() -> None:
    graph = many()
    parsed = verify(parse(write(graph), table()))
    assert write(parsed) == write(graph)
    (of_six,) = (node for node in parsed.nodes if node.name == "constant")
    assert "(0.1, inf, 1e-40, -2.0, 0.0, 7.0)" in write(parsed)
    assert ast.literal_eval(str(of_six.attributes["shape"])) == (6,)


@looped(
    ("wrong", "error"),
    [
        (
            "f32[3] = constant() {'values': (1.0, 2.0), 'shape': (2,)}",
            r"gives f32\[2\]; the node says f32\[3\]",
        ),
        ("f32[2] = constant() {'values': (1.0, 2.0), 'shape': (3,)}", r"a shape of 2 elements; got \(3,\)"),
        (
            "i32[2] = constant() {'values': (1, 2147483648), 'shape': (2,)}",
            r"numbers of 32 bits; got 1 to 2147",
        ),
        (
            "f32[1] = constant() {'values': 1.0, 'shape': (1,)}",
            r"1 to 65536 numbers and no operands; got 1\.0",
        ),
        ("f32[1] = constant() {'shape': (1,)}", r"wanted attribute 'values'"),
    ],
)
def test_a_wrong_text_is_refused(wrong: str, error: str) -> None:
    with pytest.raises(GraphError, match=error):
        verify(parse(f"%c: {wrong}\noutput y = %c\n", table()))


@pytest.mark.parametrize("name", discovery.backend_names())
def test_every_backend_reads_them(name: str) -> None:
    backend = discovery.backend(name)
    if backend.unavailable() is not None:
        pytest.skip(f"{name}: {backend.unavailable()}")
    run_on(backend, many())


def run_on(backend: Backend, graph: Graph) -> None:
    given = {
        "x": np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32),
        "positions": np.arange(1, 6, dtype=np.int32),
    }
    device = backend.open(None)
    try:
        compiled = compile_graph(graph, backend, device, {}, no_progress, CompileOptions(strict=True))
        for leaf, array in given.items():
            compiled.program.inputs[leaf][:5] = array
        got = compiled.program.run({"T": 5}, device.state(compiled.graph, {"T": 5}))
        with np.errstate(invalid="ignore"):
            wanted = interpret(graph, given)
        for key, array in wanted.items():
            np.testing.assert_allclose(got[key], array, rtol=1e-5, atol=1e-4, err_msg=key)
    finally:
        device.close()
