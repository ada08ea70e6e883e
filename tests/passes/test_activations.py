"""Activations are converted once for all products that share them, and mean nearly the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphml_reference.device import ReferenceDevice

from graphml.backend import Backend
from graphml.ir.dtype import F32, I32, DType, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.ops.attention import attention
from graphml.ir.ops.linear import quantize
from graphml.ir.verify import verify
from graphml.passes.activations import quantize_activations
from graphml.passes.fusion import fuse, fusions
from graphml.passes.fusions.linear_id import linear_id
from tests.golden import nmse

PARTNERS = {"q8_0": "q8_0", "q4_0": "q8_0", "q4_1": "q8_1"}


def partner(weight: DType) -> DType | None:
    return dtype(PARTNERS[weight.name]) if weight.name in PARTNERS else None


BACKEND = Backend("blocks", lambda threads: ReferenceDevice(), lambda node: None, activation=partner)
FUSED = {fusion.replace for fusion in fusions().values()}


def q_k_v_and_o(form: str) -> Graph:
    """Products q, k and v of one x, and the product o of their sum."""
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 64))
    weights = {name: g.weight(name, dtype(form), (64, 64)) for name in "qkvo"}
    q, k, v = (g.mul_mat(weights[name], x, f"{name}_out") for name in "qkv")
    h = g.tanh(g.mul(g.mul(q, k), v), name="h")
    return fuse(g.finish(y=g.mul_mat(weights["o"], h, "o_out")), FUSED)[0]


def arrays(graph: Graph, seed: int = 0) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    made = {"x": generator.standard_normal((4, 64)).astype(np.float32)}
    assert quantize.reference is not None
    for name, node in graph.leaves("weight").items():
        values = generator.standard_normal((64, 64)).astype(np.float32) / 8
        made[name] = quantize.reference([values], {"dtype": node.dtype.name})
    return made


@pytest.mark.parametrize("shared", [True, False])
def test_rows_are_converted_for_chosen_experts(shared: bool) -> None:
    """One conversion of the rows that meet both matrices; it means nearly the same."""
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 64) if shared else (g.n_tokens, 2, 64))
    ids = g.input("ids", I32, (g.n_tokens, 2))
    gate, up = (g.mul_mat_id(g.weight(name, dtype("q8_0"), (3, 32, 64)), x, ids) for name in ("gate", "up"))
    graph = fuse(g.finish(y=g.mul(gate, up)), FUSED)[0]
    converted = verify(quantize_activations(graph, BACKEND))
    made = [node for node in converted.nodes if node.op is quantize]
    assert [node.inputs[0].name for node in made] == ["x"]
    assert [reader.op for reader in converted.users()[made[0]]] == [linear_id, linear_id]
    random = np.random.default_rng(1)
    given: dict[str, Array] = {"ids": np.array([[0, 2], [1, 1], [2, 0], [0, 1]], np.int32)}
    given["x"] = random.standard_normal((4, 64) if shared else (4, 2, 64)).astype(np.float32)
    for name in ("gate", "up"):
        values = random.standard_normal((3, 32, 64)).astype(np.float32)
        assert quantize.reference is not None
        given[name] = quantize.reference([values], {"dtype": "q8_0"})
    exact, near = (interpret(each, given)["y"] for each in (graph, converted))
    assert 0 < nmse(near, exact) < 1e-3


@pytest.mark.parametrize("form", PARTNERS)
def test_one_conversion_serves_all_products_of_a_value(form: str) -> None:
    graph = verify(quantize_activations(q_k_v_and_o(form), BACKEND))
    made = [node for node in graph.nodes if node.op is quantize]
    assert [node.inputs[0].name for node in made] == ["x", "h"]
    assert {node.dtype for node in made} == {dtype(PARTNERS[form])}
    assert [node.origin for node in made] == [("x",), ("h",)]
    x, h = ([reader.name for reader in graph.users()[node]] for node in made)
    assert (x, h) == (["q_out", "k_out", "v_out"], ["o_out"])


@pytest.mark.parametrize("form", PARTNERS)
def test_the_product_stays_nearly_the_same(form: str) -> None:
    graph = q_k_v_and_o(form)
    converted = quantize_activations(graph, BACKEND)
    exact, got = (interpret(one, arrays(one))["y"] for one in (graph, converted))
    assert 0 < nmse(got, exact) < 5e-4


def test_float_weights_and_float_backends_are_left_alone() -> None:
    for form, backend in (
        ("f32", BACKEND),
        ("f16", BACKEND),
        ("q8_0", Backend("f", BACKEND.open, BACKEND.refuses)),
    ):
        graph = q_k_v_and_o(form)
        assert quantize_activations(graph, backend).nodes == graph.nodes


def test_rows_that_are_no_whole_blocks_are_left_alone() -> None:
    g = Builder(max_tokens=4)
    wide = Backend("wide", BACKEND.open, BACKEND.refuses, activation=lambda weight: dtype("q8_k"))
    graph = fuse(
        g.finish(y=g.mul_mat(g.weight("w", dtype("q8_0"), (8, 96)), g.input("x", F32, (g.n_tokens, 96)))),
        FUSED,
    )[0]
    assert quantize_activations(graph, wide).nodes == graph.nodes


def test_weights_of_two_formats_have_a_conversion_each() -> None:
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 64))
    a, b, c = (g.mul_mat(g.weight(form, dtype(form), (64, 64)), x) for form in PARTNERS)
    graph = quantize_activations(fuse(g.finish(y=g.mul(g.mul(a, b), c)), FUSED)[0], BACKEND)
    made = [node for node in verify(graph).nodes if node.op is quantize]
    assert [node.name for node in made] == ["x.q8_0", "x.q8_1"]


def test_bias_and_residual_stay_with_the_product() -> None:
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 64))
    y = g.add(g.mul_mat(g.weight("w", dtype("q8_0"), (64, 64)), x), g.weight("b", F32, (64,)))
    graph = quantize_activations(fuse(g.finish(y=g.add(x, y, name="sum")), FUSED)[0], BACKEND)
    product = verify(graph).outputs["y"]
    assert [source.name for source in product.inputs] == ["w", "x.q8_0", "b", "x"]
    assert dict(product.attributes) == {"bias": True, "residual": True}
    assert set(product.origin) >= {"sum", "add", "mul_mat"}


@pytest.mark.parametrize("form", ["q8_0", "f32"])
def test_attention_is_rounded_where_products_are(form: str) -> None:
    """The attribute alone changes; a graph whose products are exact keeps exact attention."""
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 64))
    heads = g.heads(g.mul_mat(g.weight("q", dtype(form), (64, 64)), x), 2)
    graph = fuse(g.finish(y=g.attend(heads, heads, heads, 0, 0.25)), FUSED)[0]
    backend = replace(BACKEND, product_dtype=lambda node: "bf16")
    rounded = verify(quantize_activations(graph, backend))
    (before,), (after,) = ([node for node in one.nodes if node.op is attention] for one in (graph, rounded))
    assert before.attributes["product_dtype"] == "f32"
    assert after.attributes == {**before.attributes, "product_dtype": "bf16" if form == "q8_0" else "f32"}
