"""The kernels that graphics cards use for products, on every device here: processors would choose others."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_gpu import tuning

from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.passes.fusions.linear import linear
from graphml.passes.fusions.linear_id import linear_id
from graphml.passes.fusions.linears import linears
from graphml.passes.fusions.mul_mat_glu import mul_mat_glu
from tests.gpu.on_devices import nmse, run_both
from tests.gpu.test_products import LIMIT, TILES, numbers, weight_of

pytestmark = pytest.mark.usefixtures("as_on_graphics_cards")
TEAMS = {
    "whole": {"GROUP": 64, "LANES": 64, "ROWS": 1, "COLUMNS": 1},
    "parts": {"GROUP": 32, "LANES": 16, "ROWS": 2, "COLUMNS": 2},
}
on_devices = pytest.mark.parametrize("device", ["wgpu", "opencl"])


def check(graph: Graph, values: dict[str, Array], device: str) -> None:
    made, wanted = run_both(graph, values, device, T=len(values["x"]))
    for name, want in wanted.items():
        assert nmse(made[name], want) <= LIMIT


def several(bound: int, count: int) -> tuple[Graph, dict[str, Array]]:
    """A product with bias and residual, three of one value, and a gate with its two."""
    g, tokens, (n, k) = Builder(), Symbol("T", bound), (37, 160)
    w, up = g.weight("w", dtype("q8_0"), (n, k)), g.weight("up", dtype("q4_1"), (n, k))
    bias, x = g.weight("bias", F32, (n,)), g.input("x", F32, (tokens, k))
    residual = g.input("residual", F32, (tokens, n))
    products = g.results(g.call(linears, x, w, up, w))
    graph = g.finish(
        y=g.call(linear, w, x, bias, residual, bias=True, residual=True),
        gated=g.call(mul_mat_glu, w, up, x, glu="swiglu"),
        last=products[2],
    )
    values = {"w": weight_of("q8_0", n, k), "up": weight_of("q4_1", n, k), "bias": numbers(n)}
    return graph, {**values, "x": numbers(count, k), "residual": numbers(count, n)}


@on_devices
@pytest.mark.parametrize("way", TEAMS)
def test_lanes_share_rows(way: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "few_rows", lambda facts, product: TEAMS[way])
    check(*several(5, 4), device)


@on_devices
def test_tiles(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "many_rows", lambda facts, product: TILES)
    check(*several(19, 17), device)


@on_devices
def test_tiles_of_experts(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml_gpu.lowering.experts._TILES", TILES)
    g, tokens, (experts, n, k), count = Builder(), Symbol("T", 21), (6, 19, 64), 20
    weight, ids = g.weight("w", dtype("q4_0"), (experts, n, k)), g.input("ids", I32, (tokens, 2))
    graph = g.finish(y=g.call(linear_id, weight, g.input("x", F32, (tokens, k)), ids))
    chosen = np.random.default_rng(0).integers(0, experts - 1, (count, 2), np.int32)
    values = {"w": weight_of("q4_0", experts, n, k), "x": numbers(count, k), "ids": chosen}
    check(graph, values, device)
