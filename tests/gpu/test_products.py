"""Products and look-ups of GPU backends: every kernel, format and way to share work out, run in Python."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from graphml_gpu import tuning
from graphml_gpu.device import GpuDevice
from graphml_gpu.kernels import formats
from graphml_gpu.plain_driver import FACTS, PlainDriver
from graphml_quant import by_name, dequantize, quantize

from graphml.backend import no_progress
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.ops.layout import reshape
from graphml.ir.shape import Symbol
from graphml.passes.fusions.linear import linear
from graphml.passes.fusions.linear_id import linear_id
from graphml.passes.fusions.linears import linears
from graphml.passes.fusions.mul_mat_glu import GLUS, mul_mat_glu
from graphml.passes.plan import plan_memory
from tests.cpu.weights import ordinary_weights

LIMIT = 1e-10
WAYS = {
    "alone": {"GROUP": 4, "LANES": 1, "ROWS": 1, "COLUMNS": 2},
    "four rows alone": {"GROUP": 4, "LANES": 1, "ROWS": 4, "COLUMNS": 2},
    "together": {"GROUP": 8, "LANES": 8, "ROWS": 2, "COLUMNS": 3},
    "teams": {"GROUP": 8, "LANES": 4, "ROWS": 2, "COLUMNS": 3},
}
TILES = {"GROUP": 8, "ACROSS": 4, "TILE_ROWS": 8, "TILE_COLUMNS": 4, "UNITS": 2}
GRAPHICS = dataclasses.replace(FACTS, kind="discrete")


def weight_of(format: str, *shape: int) -> Array:
    """Weights as a graph holds them."""
    kind, n, k = by_name(format), math.prod(shape[:-1]), shape[-1]
    if kind.encode is not None:
        made = np.ascontiguousarray(quantize(kind, numbers(n, k))).view(np.uint8)
    else:
        made = ordinary_weights(kind, n, k)
    plain = dtype(format).numpy
    return made.reshape(*shape[:-1], -1) if plain is None else made.view(plain).reshape(shape)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def check(graph: Graph, values: dict[str, Array], count: int, driver: PlainDriver) -> None:
    """On the driver as in NumPy, with no node left to NumPy."""
    device = GpuDevice(driver)
    weights = {name: values[name] for name in graph.leaves("weight")}
    program = device.lower(graph, plan_memory(graph, device), weights, no_progress)
    assert not program.fallbacks
    for name, array in program.inputs.items():
        array[tuple(map(slice, values[name].shape))] = values[name]
    made = program.run({"T": count}, device.state(graph, {}))
    for name, want in interpret(graph, values).items():
        error = ((made[name] - want.astype(np.float64)) ** 2).sum() / (want.astype(np.float64) ** 2).sum()
        assert made[name].shape == want.shape
        assert error <= LIMIT
    device.close()


@pytest.mark.parametrize("format", formats.names())
def test_every_format_is_read_as_its_decoder_says(format: str) -> None:
    g, k = Builder(), max(2 * formats.reader(format).block_elements, 64)
    weight = g.weight("w", dtype(format), (5, k))
    tokens = Symbol("T", 3)
    ids, x = g.input("ids", I32, (tokens,)), g.input("x", F32, (tokens, k))
    graph = g.finish(rows=g.rows(weight, ids), product=g.call(linear, weight, x))
    w = weight_of(format, 5, k)
    values = {"w": w, "ids": np.array([4, 0, 3], np.int32), "x": numbers(3, k)}
    check(graph, values, 3, PlainDriver())
    if format not in ("f32", "f16", "bf16"):
        rows = interpret(graph, values)["rows"]
        np.testing.assert_array_equal(rows, dequantize(by_name(format), w, (5, k))[[4, 0, 3]])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("format", "k"), [("f32", 23), ("f16", 20), ("bf16", 33), ("q4_0", 96)])
def test_few_rows(way: str, format: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml_gpu.tuning.few_rows", lambda facts, product: WAYS[way])
    tokens, n, g = Symbol("T", 3), 11, Builder()
    weight, x = g.weight("w", dtype(format), (n, k)), g.input("x", F32, (tokens, k))
    bias, residual = g.weight("bias", F32, (n,)), g.input("residual", F32, (tokens, n))
    y = g.call(linear, weight, x, bias, residual, bias=True, residual=True)
    values = {"w": weight_of(format, n, k), "bias": numbers(n)}
    for count in (3, 1):
        values |= {"x": numbers(count, k), "residual": numbers(count, n)}
        check(g.finish(y=y), values, count, PlainDriver(GRAPHICS))


@pytest.mark.parametrize("bound", [2, 9])
@pytest.mark.parametrize("k", [20, 23])
def test_infinities_at_a_row_end_stay_what_they_are(
    k: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphml_gpu.tuning.many_rows", lambda facts, product: TILES)
    g, device = Builder(), GpuDevice(PlainDriver(GRAPHICS))
    weight, x = g.weight("w", F32, (3, k)), g.input("x", F32, (Symbol("T", bound), k))
    graph = g.finish(y=g.call(linear, weight, x))
    w, given = np.ones((3, k), np.float32), np.ones((2, k), np.float32)
    w[1, -1], given[1, -1] = np.inf, -np.inf
    program = device.lower(graph, plan_memory(graph, device), {"w": w}, no_progress)
    program.inputs["x"][:2] = given
    made = program.run({"T": 2}, device.state(graph, {}))["y"]
    np.testing.assert_array_equal(made, [[k, np.inf, k], [-np.inf, -np.inf, -np.inf]])


@pytest.mark.parametrize(("format", "k"), [("f32", 23), ("f16", 20), ("q6_k", 256), ("q8_0", 96)])
def test_many_rows(format: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml_gpu.tuning.many_rows", lambda facts, product: TILES)
    tokens, n, g = Symbol("T", 11), 19, Builder()
    weight, x = g.weight("w", dtype(format), (n, k)), g.input("x", F32, (tokens, k))
    bias, residual = g.weight("bias", F32, (n,)), g.input("residual", F32, (tokens, n))
    y = g.call(linear, weight, x, bias, residual, bias=True, residual=True)
    values = {"w": weight_of(format, n, k), "bias": numbers(n)}
    for count in (11, 4):
        values |= {"x": numbers(count, k), "residual": numbers(count, n)}
        check(g.finish(y=y), values, count, PlainDriver(GRAPHICS))


@pytest.mark.parametrize("glu", GLUS)
@pytest.mark.parametrize("bound", [3, 9])
def test_a_gate_and_its_products(glu: str, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml_gpu.tuning.many_rows", lambda facts, product: TILES)
    tokens, (n, k), g = Symbol("T", bound), (10, 64), Builder()
    operands = [g.weight("gate", dtype("q8_0"), (n, k)), g.weight("up", dtype("q4_1"), (n, k))]
    operands += [g.input("x", F32, (tokens, k))]
    operands += [g.weight(name, F32, (n,)) for name in ("gate_bias", "up_bias")]
    graph = g.finish(y=g.call(mul_mat_glu, *operands, glu=glu, bias=True))
    values = {"gate": weight_of("q8_0", n, k), "up": weight_of("q4_1", n, k), "x": numbers(3, k)}
    values |= {"gate_bias": numbers(n), "up_bias": 2 * numbers(n)}
    check(graph, values, 3, PlainDriver(GRAPHICS))


@pytest.mark.parametrize("bound", [2, 9])
@pytest.mark.parametrize(("sizes", "bias"), [((9, 5, 3), True), ((9, 5), False), ((3, 4, 5, 6), True)])
def test_several_products_of_one_value(
    sizes: tuple[int, ...], bias: bool, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphml_gpu.tuning.many_rows", lambda facts, product: TILES)
    tokens, k, g = Symbol("T", bound), 64, Builder()
    kinds = ("q8_0", "q5_1", "f16", "q8_0")
    operands = [g.input("x", F32, (tokens, k))]
    values = {"x": numbers(2, k)}
    for i, n in enumerate(sizes):
        operands.append(g.weight(f"w{i}", dtype(kinds[i]), (n, k)))
        values[f"w{i}"] = weight_of(kinds[i], n, k)
    for i, n in enumerate(sizes if bias else ()):
        operands.append(g.weight(f"b{i}", F32, (n,)))
        values[f"b{i}"] = numbers(n)
    made = g.results(g.call(linears, *operands, bias=bias))
    graph = g.finish(**{f"y{i}": node for i, node in enumerate(made)})
    check(graph, values, 2, PlainDriver(GRAPHICS))


def test_weights_larger_than_a_binding_are_multiplied_shard_by_shard() -> None:
    tokens, (n, k), g = Symbol("T", 2), (37, 64), Builder()
    weight, up = g.weight("w", dtype("q8_0"), (n, k)), g.weight("up", dtype("q8_0"), (n, k))
    bias, x = g.weight("bias", F32, (n,)), g.input("x", F32, (tokens, k))
    ids = g.input("ids", I32, (tokens,))
    graph = g.finish(
        y=g.call(linear, weight, x, bias, bias=True),
        gated=g.call(mul_mat_glu, weight, up, x, glu="swiglu"),
        both=g.results(g.call(linears, x, weight, up))[1],
        rows=g.rows(weight, ids),
    )
    values = {"w": weight_of("q8_0", n, k), "up": weight_of("q8_0", n, k), "x": numbers(2, k)}
    values |= {"bias": numbers(n), "ids": np.array([36, 1], np.int32)}
    check(graph, values, 2, PlainDriver(dataclasses.replace(FACTS, max_binding_bytes=1024)))


def test_the_usual_parameters_share_all_rows_out() -> None:
    for facts in (FACTS, GRAPHICS):
        for n, k in ((1, 32), (5000, 576), (64, 4096)):
            way = tuning.few_rows(facts, tuning.Product("q4_0", n, k, 1))
            assert way["GROUP"] % way["LANES"] == 0
            assert way["GROUP"] <= facts.max_group


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("bound", [3, 12])
@pytest.mark.parametrize("binding", [1 << 20, 3100])
def test_experts(each: bool, bound: int, binding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphml_gpu.lowering.experts._TILES", TILES)
    tokens, (experts, n, k), g = Symbol("T", bound), (6, 16, 32), Builder()
    weight, ids = g.weight("w", dtype("q8_0"), (experts, n, k)), g.input("ids", I32, (tokens, 2))
    shape = (tokens, 2, k) if each else (tokens, k)
    graph = g.finish(y=g.call(linear_id, weight, g.input("x", F32, shape), ids))
    values = {"w": weight_of("q8_0", experts, n, k)}
    driver = PlainDriver(dataclasses.replace(GRAPHICS, max_binding_bytes=binding, max_group=16))
    for count in (bound, 2):
        values["ids"] = np.random.default_rng(count).integers(0, experts - 1, (count, 2), np.int32)
        values["x"] = numbers(count, *shape[1:])
        check(graph, values, count, driver)


def test_a_weight_in_another_shape_has_the_rows_of_that_shape() -> None:
    tokens, g = Symbol("T", 3), Builder()
    weight, x = g.weight("w", F32, (24,)), g.input("x", F32, (tokens, 24))
    graph = g.finish(y=g.mul_mat(g.call(reshape, weight, keep=0, tail=(1, 24)), x))
    check(graph, {"w": numbers(24), "x": numbers(3, 24)}, 3, PlainDriver())
