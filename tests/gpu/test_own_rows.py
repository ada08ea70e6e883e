"""Rows that products make for themselves: what they are made of stays, what has no room or kernel is left."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graphml_gpu.conversions_in_products import own_rows
from graphml_gpu.driver import Facts
from graphml_gpu.kernels.products.int8_rows import PLANES
from graphml_gpu.kernels.products.mat_vec import MAT_VEC
from graphml_gpu.language import Features
from graphml_gpu.plain_driver import FACTS
from graphml_gpu.tuning import KERNELS, Product, candidates

from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import Symbol
from graphml.passes.fusions.linear import linear
from graphml.passes.fusions.mul_mat_glu import mul_mat_glu
from graphml.passes.fusions.norm_mul import rms_norm_mul
from tests.gpu.on_devices import device
from tests.gpu.test_int8_products import CLOSE, both, nmse, weights

K = 512


@pytest.mark.parametrize("tokens", [1, 2, 20])
def test_a_gate_of_two_formats_reads_a_row_from_memory(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels read weights by words and by 16 bytes: they are not one dispatch."""
    monkeypatch.setenv(KERNELS.name, "graphics")
    g = Builder()
    row = g.call(quantize, g.input("x", F32, (Symbol("T", tokens), K)), dtype="q8_1")
    gate, up = g.weight("gate", dtype("q4_k"), (K, K)), g.weight("up", dtype("q6_k"), (K, K))
    graph = g.finish(y=g.call(mul_mat_glu, gate, up, row, glu="swiglu"))
    values = {"gate": weights("q4_k", K, K, 1), "up": weights("q6_k", K, K, 2)}
    values["x"] = np.random.default_rng(0).standard_normal((tokens, K), np.float32)
    assert nmse(*both(device("wgpu"), graph, values, tokens)) < CLOSE


def test_a_scale_that_a_step_works_out_stays_until_the_last_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a norm that has no dispatch: its memory would be free after the norm."""
    monkeypatch.setenv(KERNELS.name, "graphics")
    g = Builder()
    x, factors = g.input("x", F32, (Symbol("T", 1), K)), g.input("factors", F32, (K,))
    norm = g.call(rms_norm_mul, x, g.mul(factors, factors), eps=1e-5)
    row = g.call(quantize, norm, dtype="q8_1")
    first, second = (g.call(linear, g.weight(name, dtype("q8_0"), (K, K)), row) for name in ("a", "b"))
    graph = g.finish(y=g.add(first, second))
    values = {"a": weights("q8_0", K, K, 1), "b": weights("q8_0", K, K, 2)}
    random = np.random.default_rng(0)
    values |= {"x": random.standard_normal((1, K), np.float32), "factors": random.random(K, np.float32)}
    assert nmse(*both(device("wgpu"), graph, values, 1)) < 1e-6


def _product(k: int) -> Graph:
    g = Builder()
    row = g.call(quantize, g.input("x", F32, (1, k)), dtype="q8_1")
    return g.finish(y=g.call(linear, g.weight("w", dtype("q8_0"), (4096, k)), row))


@pytest.mark.parametrize("subgroup_min", [8, 16, 32])
@pytest.mark.parametrize("shared_bytes", [16384, 32768])
def test_a_row_and_the_sums_of_its_product_fit_in_shared_memory(shared_bytes: int, subgroup_min: int) -> None:
    """The widest row that a product makes, however it is shared out."""
    features = Features(subgroups=True, subgroup_min=subgroup_min, subgroup_max=64, dot4=True)
    facts: Facts = dataclasses.replace(FACTS, kind="discrete", shared_bytes=shared_bytes)
    widths = range(8192, 32768, 256)
    k = max(k for k in widths if own_rows(_product(k), facts, features, lambda node: None))
    for way in candidates(facts, Product("q8_0", 4096, k, 1, "q8_1")):
        narrow = MAT_VEC["own int8"].specialise(
            features, FORMAT="q8_0", ALIGN=2, OWN="layer_norm", SHIFTED=True, K=32, TURNS=2, **way
        )
        assert narrow.shared_bytes + (k - 32) * PLANES // 8 <= shared_bytes, way
