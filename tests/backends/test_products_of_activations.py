"""Products of two computed values for each token, and outer products, on every backend."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.compiler.compile import compile_graph
from graphml.errors import ShapeError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.loading import discovery
from tests.backend_pairs import BACKENDS

T = 5


def every_use() -> Graph:
    g = Builder(max_tokens=T)
    x, fixed = g.input("x", F32, (g.n_tokens, 210)), g.input("fixed", F32, (2, 19, 37))
    seen, twice = g.reshape(x, 14, 15), g.scale(g.reshape(x, 14, 15), 2.0)
    deep = g.reshape(g.scale(x, 0.5), 2, 7, 15)
    vector = g.reshape(g.columns(x, 3, 18), 1, 15)
    return g.finish(
        views=g.mul_mat(seen, g.reshape(x, 14, 15)),
        equal=g.mul_mat(twice, twice),
        transposed=g.mul_mat(g.permute(seen, 0, 2, 1), g.permute(twice, 0, 2, 1)),
        deep=g.mul_mat(g.permute(deep, 0, 1, 3, 2), g.permute(deep, 0, 1, 3, 2)),
        vector=g.mul_mat(seen, vector),
        fixed=g.mul_mat(fixed, g.scale(fixed, 3.0)),
        outer=g.outer(g.columns(x, 0, 67), g.columns(x, 70, 73)),
        square=g.outer(x, x),
    )


def wanted(x: Array, fixed: Array) -> dict[str, Array]:
    a = x.astype(np.float64).reshape(-1, 14, 15)
    deep = 0.5 * a.reshape(-1, 2, 7, 15)
    return {
        "views": np.einsum("tik,tjk->tij", a, a),
        "equal": 4 * np.einsum("tik,tjk->tij", a, a),
        "transposed": 2 * np.einsum("tki,tkj->tij", a, a),
        "deep": np.einsum("thki,thkj->thij", deep, deep),
        "vector": np.einsum("tk,tjk->tj", x[:, 3:18].astype(np.float64), a)[:, None],
        "fixed": 3 * np.einsum("bik,bjk->bij", *[fixed.astype(np.float64)] * 2),
        "outer": np.einsum("ti,tj->tij", x[:, :67], x[:, 70:73]),
        "square": np.einsum("ti,tj->tij", x, x),
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_are_those_of_numpy_for_any_number_of_tokens(backend: str) -> None:
    rng, device = np.random.default_rng(0), discovery.backend(backend).open(2)
    made = compile_graph(every_use(), discovery.backend(backend), device, {})
    assert not getattr(made.program, "fallbacks", ())
    state = device.state(made.graph, {})
    for tokens in (T, 1, 3):
        x, fixed = (rng.standard_normal(n, np.float32) for n in ((tokens, 210), (2, 19, 37)))
        made.program.inputs["x"][:tokens], made.program.inputs["x"][tokens:] = x, np.nan
        made.program.inputs["fixed"][...] = fixed
        got = made.program.run({"T": tokens}, state)
        for name, value in wanted(x, fixed).items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-4, err_msg=name)
    device.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinity_and_nan_stay_in_their_rows(backend: str) -> None:
    """In the last element of a row too, where vectors and tiles end."""
    g, device = Builder(max_tokens=2), discovery.backend(backend).open(2)
    nodes = [g.input(name, F32, (g.n_tokens, n, 21)) for name, n in (("weight", 3), ("x", 5))]
    graph = g.finish(y=g.mul_mat(*nodes))
    made = compile_graph(graph, discovery.backend(backend), device, {})
    weight, x = np.ones((2, 3, 21), np.float32), np.ones((2, 5, 21), np.float32)
    weight[0, 1, 20], x[0, 2, 20], weight[1, 0, 20], x[1, 4, 20] = np.inf, -np.inf, np.nan, np.inf
    made.program.inputs["weight"][...], made.program.inputs["x"][...] = weight, x
    with np.errstate(invalid="ignore"):
        got = made.program.run({"T": 2}, device.state(made.graph, {}))["y"]
        np.testing.assert_array_equal(got, x @ weight.transpose(0, 2, 1))
    device.close()


def test_operands_that_do_not_fit_are_refused() -> None:
    g = Builder(max_tokens=T)
    x, q = g.input("x", F32, (g.n_tokens, 6)), g.input("q", F32, (g.n_tokens, 2, 6))
    other, weight = g.input("other", F32, (g.n_tokens, 3, 4)), g.weight("w", F32, (4, 3, 6))
    wanted = r"\[mul_mat_batch\] wanted weight \[..., out, in\] and x \[..., n, in\] with the same leading .*"
    for a, b, shapes in (
        (q, other, "T<=5, 2, 6.*T<=5, 3, 4"),
        (weight, q, "4, 3, 6.*T<=5, 2, 6"),
        (q, x, ""),
    ):
        with pytest.raises(ShapeError, match=wanted + shapes):
            g.mul_mat(a, b)
    with pytest.raises(
        ShapeError, match=r"\[g.mul_mat\] wanted weight \[out, in\], then x; got f32\[T<=5, 6"
    ):
        g.mul_mat(x, q)
    for a, b in ((x, q), (g.weight("a", F32, (6,)), g.weight("a", F32, (6,)))):
        with pytest.raises(
            ShapeError, match=r"\[g.outer\] wanted a \[..., n\] and b \[..., m\] with the same"
        ):
            g.outer(a, b)
