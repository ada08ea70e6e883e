"""Products of 8-bit activations on GPUs: in every format, by rows and by tiles, of rows that they make."""

from __future__ import annotations

import graphml_quant
import numpy as np
import pytest
from graphml_gpu.conversions_in_products import own_rows
from graphml_gpu.device import GpuDevice
from graphml_gpu.host import from_planes, to_planes
from graphml_gpu.kernels import formats
from graphml_gpu.program import GpuProgram
from graphml_gpu.tuning import KERNELS

from graphml.backend import no_progress
from graphml.ir.activation_blocks import encode_activations
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import Symbol, bounds
from graphml.passes.fusions.layer_norm import layer_norm_mul
from graphml.passes.fusions.linear import linear
from graphml.passes.fusions.linears import linears
from graphml.passes.fusions.mul_mat_glu import mul_mat_glu
from graphml.passes.fusions.norm_mul import rms_norm_mul
from graphml.passes.plan import plan_memory
from graphml.weights.random_blocks import random_blocks
from tests.golden import nmse
from tests.gpu.on_devices import device

INTEGERS = [name for name in formats.names() if formats.reader(name).integers is not None]
CLOSE = 1e-11
"""NMSE of sums of the same numbers in another order."""


@pytest.fixture
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on the device at hand, and as on graphics cards."""
    if request.param == "graphics":
        monkeypatch.setenv(KERNELS.name, "graphics")
    return str(request.param)


def weights(kind: str, n: int, k: int, seed: int = 1) -> Array:
    format = graphml_quant.by_name(kind)
    blocks = [one.reshape(-1) for one in random_blocks(format, n * k // format.block_elements, 0.1, seed)]
    return np.concatenate(blocks).reshape(n, -1)


def program(opened: GpuDevice, graph: Graph, values: dict[str, Array]) -> GpuProgram:
    stored = {name: values[name] for name in graph.leaves("weight")}
    return GpuProgram(graph, plan_memory(graph, opened), stored, opened.memory, no_progress, opened.support)


def both(opened: GpuDevice, graph: Graph, values: dict[str, Array], tokens: int) -> tuple[Array, Array]:
    """An output y on the device, and in NumPy."""
    made = program(opened, graph, values)
    assert not made.fallbacks
    for name in graph.leaves("input"):
        made.inputs[name][: len(values[name])] = values[name]
    y = np.array(made.run({"T": tokens}, opened.state(graph, {}))["y"])
    return y, interpret(graph, values)["y"]


# Formats differ in how they are read alone: each meets a product of few rows and one in tiles as on graphics
# cards, and one of them as on processors.
SIZES = [(40, 512, 1), (70, 768, 20), (33, 256, 3), (70, 512, 40)]


@pytest.mark.parametrize(
    ("kind", "n", "k", "tokens", "kernels"),
    [
        (kind, *size, kernels)
        for i, kind in enumerate(INTEGERS)
        for place, size in enumerate(SIZES[2 * (i % 2) :][:2])
        for kernels in (["graphics", "processor"] if place == i // 2 % 2 else ["graphics"])
    ],
    indirect=["kernels"],
)
def test_a_product_of_every_format(kind: str, n: int, k: int, tokens: int, kernels: str) -> None:
    g = Builder()
    x = g.input("x", F32, (Symbol("T", tokens), k))
    graph = g.finish(y=g.call(linear, g.weight("w", dtype(kind), (n, k)), g.call(quantize, x, dtype="q8_1")))
    rows = np.random.default_rng(0).standard_normal((tokens, k), np.float32)
    made, wanted = both(device("wgpu"), graph, {"w": weights(kind, n, k), "x": rows}, tokens)
    assert nmse(made, wanted) < CLOSE


def _row(g: Builder, x: Node, before: str, k: int) -> Node:
    match before:
        case "rms_norm":
            x = g.call(rms_norm_mul, x, g.weight("scale", F32, (k,)), eps=1e-5)
        case "layer_norm":
            scale, shift = (g.weight(name, F32, (k,)) for name in ("scale", "shift"))
            x = g.call(layer_norm_mul, x, scale, shift, eps=1e-5, bias=True)
        case "gelu":
            x = g.gelu(x)
    return g.call(quantize, x, dtype="q8_1")


BEFORE = ("", "rms_norm", "layer_norm", "gelu")


@pytest.mark.parametrize(
    ("before", "product", "tokens"),
    [(before, "linear", tokens) for before in BEFORE for tokens in (1, 2)]
    + [(before, product, 1) for i, product in enumerate(("linears", "glu")) for before in BEFORE[i::2]],
)
def test_a_row_made_by_its_product(
    before: str, product: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is made by the products that read it, without a dispatch.

    Two rows are not: what makes them does so whatever reads them, which is the simplest product here. What
    makes one row is a function that all products call: each way meets one of the larger two.
    """
    monkeypatch.setenv(KERNELS.name, "graphics")
    k, opened = 768, device("wgpu")
    g = Builder()
    row = _row(g, g.input("x", F32, (Symbol("T", tokens), k)), before, k)
    kinds = ("q4_k", "q6_k", "q4_k", "q5_k")
    several = [g.weight(f"w{i}", dtype(kind), (20 + i, k)) for i, kind in enumerate(kinds)]
    if product == "linear":
        y = g.call(linear, several[1], row)
    elif product == "glu":
        y = g.call(mul_mat_glu, several[0], g.weight("up", dtype("q4_k"), (20, k)), row, glu="swiglu")
    else:
        y = g.results(g.call(linears, row, *several))[3]
    graph = g.finish(y=y)
    drawn = np.random.default_rng(3)
    values: dict[str, Array] = {}
    for name, node in graph.leaves("weight").items():
        stored = node.dtype.is_format
        values[name] = (
            weights(node.dtype.name, *bounds(node.shape)) if stored else drawn.standard_normal(k, np.float32)
        )
    values["x"] = drawn.standard_normal((tokens, k), np.float32)
    made, wanted = both(opened, graph, values, tokens)
    assert nmse(made, wanted) < 1e-6  # a number of a norm may round to its neighbour
    dispatches = len(program(opened, graph, values).dispatches)
    found = own_rows(graph, opened.facts, opened.memory.features, opened.refuses)
    assert bool(found) == (tokens == 1)
    assert dispatches == 1 if tokens == 1 else dispatches > 1


def test_what_a_row_is_made_of_stays_until_its_last_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory would be free after the conversion, were that a dispatch."""
    monkeypatch.setenv(KERNELS.name, "graphics")
    k, opened = 512, device("wgpu")
    g = Builder()
    x = g.input("x", F32, (Symbol("T", 1), k))
    source = g.mul(x, x)
    row = g.call(quantize, source, dtype="q8_1")
    first, second = (g.call(linear, g.weight(name, dtype("q8_0"), (k, k)), row) for name in ("a", "b"))
    graph = g.finish(y=g.add(first, second))
    values = {"a": weights("q8_0", k, k, 1), "b": weights("q8_0", k, k, 2)}
    values["x"] = np.random.default_rng(0).standard_normal((1, k), np.float32)
    made, wanted = both(opened, graph, values, 1)
    assert nmse(made, wanted) < CLOSE
    plan = plan_memory(graph, opened)
    assert len({plan.offsets[node] for node in (source, first, second)}) == 3


def test_planes_hold_the_same_numbers() -> None:
    rows = np.random.default_rng(0).standard_normal((3, 2, 96), np.float32)
    rows[1, 1, :32] *= 1e20  # a scale that is no half
    blocks = encode_activations(rows)
    planes = to_planes(blocks)
    assert planes.shape == blocks.shape
    first = planes[0, 0].view("<u4").reshape(9, 3)
    assert first[:8].T.tobytes() == blocks[0, 0].reshape(3, 36)[:, 4:].tobytes()
    back = from_planes(planes)
    assert np.array_equal(back, blocks)
