"""Weights and inputs of a caller are those that a graph computes with, or are refused by name."""

from __future__ import annotations

from typing import Any

import graphml_quant
import numpy as np
import pytest

import graphml
from graphml.errors import GraphError, UsageError
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder

W = np.random.default_rng(0).standard_normal((6, 32)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((2, 32)).astype(np.float32)


class Exported:
    """Of another library, which says no more of itself than DLPack does."""

    def __init__(self, array: Any, error: str = "") -> None:
        self.array, self.error = array, error

    def __dlpack__(self, **options: Any) -> Any:
        if self.error:
            raise BufferError(self.error)
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def product(kind: str = "f32") -> Graph:
    g = Builder(max_tokens=2)
    return g.finish(y=g.mul_mat(g.weight("w", dtype(kind), (6, 32)), g.input("x", F32, (g.n_tokens, 32))))


def computed(weight: Any, kind: str = "f32", backend: str = "cpu") -> Any:
    compiled = graphml.compile(product(kind), backend, weights={"w": weight, "unread": None}, threads=1)
    return compiled(x=X)["y"]


@pytest.mark.parametrize("backend", ["cpu", "reference", "numba"])
@pytest.mark.parametrize(
    "weight",
    [W, np.asfortranarray(W), W.astype(np.float64), W[::-1][::-1], np.repeat(W, 2, 0)[::2], W.astype(">f4"),
     Exported(W)],
    ids=["plain", "by columns", "float64", "reversed twice", "every other row", "big-endian", "exported"],
)  # fmt: skip
def test_any_order_and_float_type_gives_the_same(weight: Any, backend: str) -> None:
    np.testing.assert_allclose(computed(weight, backend=backend), X @ W.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_stored_types_take_their_bytes_and_floats_where_a_number_has_one_form(kind: str) -> None:
    form = graphml_quant.formats()[kind]
    stored = graphml_quant.quantize(form, W)
    decoded = graphml_quant.dequantize(form, stored, W.shape)
    weight = W.astype(np.float16) if kind == "f16" else stored
    np.testing.assert_allclose(computed(weight, kind), X @ decoded.T, rtol=2e-2, atol=1e-1)
    if kind != "q8_0":
        np.testing.assert_array_equal(computed(W, kind), computed(weight, kind))


@pytest.mark.parametrize(
    ("weight", "kind", "message"),
    [(W.T, "f32", r"w: wanted f32\[6, 32\]; got float32 \[32, 6\]"),
     (W[:5], "f32", r"got float32 \[5, 32\]"),
     (W.reshape(-1), "f32", r"got float32 \[192\]"),
     (np.ones((6, 32), int), "f32", r"got int64"),
     (W.astype(complex), "f32", "got complex128"),
     (W * 1e30, "f16", "beyond f16"),
     (W, "q8_0", r"w: wanted q8_0\[6, 32\], as uint8 of its blocks; got float32"),
     (np.zeros((6, 32), np.uint8), "q8_0", r"as uint8 \[6, 34\]; got uint8 \[6, 32\]"),
     (W.tolist(), "f32", "wanted an array or a tensor; got list"),
     (Exported(W, "on a device"), "f32", "in the processor's memory; got on a device")],
)  # fmt: skip
def test_what_cannot_be_the_weight_is_refused_by_name(weight: Any, kind: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"weights: .*{message}"):
        graphml.compile(product(kind), weights={"w": weight})


def test_whole_numbers_keep_their_values() -> None:
    g = Builder(max_tokens=1)
    graph = g.finish(y=g.rows(g.input("x", F32, (4, 2)), g.weight("ids", dtype("i32"), (3,))))
    compiled = graphml.compile(graph, "reference", weights={"ids": np.array([2, 0, 3], np.int64)})
    out = compiled(x=np.arange(8.0).reshape(4, 2))["y"]
    np.testing.assert_array_equal(out[:, 0], [4, 0, 6])
    with pytest.raises(UsageError, match=r"weights: ids: .* beyond i32"):
        graphml.compile(graph, "reference", weights={"ids": np.array([2, 0, 1 << 40])})


def test_a_compiled_graph_is_called_with_inputs_of_any_number_of_tokens() -> None:
    compiled = graphml.compile(product(), weights={"w": W}, threads=1)
    one, two = compiled(x=X[:1])["y"], compiled(x=Exported(X.astype(np.float64)))["y"]
    assert (one.shape, two.shape) == ((1, 6), (2, 6))
    np.testing.assert_array_equal(one, two[:1])
    two[:] = 0
    assert compiled(x=X)["y"].any()  # a copy was changed


@pytest.mark.parametrize(
    ("inputs", "message"),
    [({}, "x: is missing: wanted the inputs x"),
     ({"x": X, "z": X}, "z: no input of the graph: wanted the inputs x"),
     ({"x": X[:, :5]}, r"x: wanted f32\[T<=2, 32\]; got float32 \[2, 5\]"),
     ({"x": np.zeros((3, 32), np.float32)}, r"got float32 \[3, 32\]"),
     ({"x": X[0]}, r"got float32 \[32\]"), ({"x": X.astype(np.int32)}, "got int32"),
     ({"x": "X"}, "wanted an array or a tensor; got str")],
)  # fmt: skip
def test_an_input_that_does_not_fit_is_refused_by_name(inputs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graphml.compile(product(), "reference", weights={"w": W})(**inputs)


def test_a_program_with_states_says_how_it_is_run() -> None:
    compiled = graphml.compile("stories260k", "reference")
    with pytest.raises(GraphError, match=r"keeps states, as .*: wanted program.run\(dims, state\)"):
        compiled(tokens=np.array([1]))


def test_inputs_share_their_symbols() -> None:
    g = Builder(max_tokens=4)
    x, y = (g.input(name, F32, (g.n_tokens, 3)) for name in "xy")
    added = graphml.compile(g.finish(z=g.add(x, y)), "reference")
    rows = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(added(x=rows, y=rows)["z"], 2 * rows)
    with pytest.raises(UsageError, match=r"y: wanted f32\[T<=4, 3\]; got float32 \[2, 3\]"):
        added(x=rows, y=rows[:2])


def test_a_compiled_graph_shows_what_it_takes_and_returns() -> None:
    g = Builder(max_tokens=4)
    x = g.input("x", "f32", (g.n_tokens, 8))
    compiled = graphml.compile(g.finish(y=g.silu(x)), "reference")
    assert repr(compiled).startswith("Compiled(x: f32[T<=4, 8] -> y: f32[T<=4, 8]; 2 nodes, 0 fusions, ")
