"""Every op, plain and fused, with every sample on every backend against its meaning in NumPy.

An op, a fusion, a weight format or a backend that is added is tested here unasked; what has no kernel runs
its fallback.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from graphml_quant import Format, formats, quantize

from graphml.backend import Device, no_progress
from graphml.engine import discovery
from graphml.engine.compile import prepare
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.op import Array, Op, Sample, Type
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.ops.linear import quantize as quantize_op
from graphml.ir.shape import Symbol, fixed, resolve
from graphml.passes.fusion import all_ops
from graphml.passes.fusions.linear import linear
from graphml.passes.plan import plan_memory
from tests.cpu.weights import ordinary_weights

NMSE_LIMIT = 1e-10  # float32 throughout: rounding and vectorised exp only
LIMITS = {"attention": 1e-9}
# A backend's own layout of int8 activations may keep scales in float32 where the reference has float16.
INT8_ACTIVATIONS_LIMIT = 1e-6
# Formats of activations alone; no file holds weights of them.
WEIGHT_FORMATS = [format for name, format in formats().items() if name not in ("q8_1", "q8_k")]


def result_types(op: Op, sample: Sample) -> tuple[Type, ...]:
    kind = op.infer(sample.inputs, {**op.attributes, **sample.attributes})
    return kind.parts or (kind,)


CASES = [
    pytest.param(op, sample, id=f"{name}-{i}")
    for name, op in sorted(all_ops().items())
    # The layout of converted activations is each backend's own: products with them are compared instead.
    if op not in LEAVES
    for i, sample in enumerate(op.samples())
    if not any(kind.dtype.is_format for kind in result_types(op, sample))
]


@dataclass
class Opened:
    """One device per backend for all cases."""

    devices: dict[str, Device]

    def get(self, name: str) -> Device:
        if name not in self.devices:
            self.devices[name] = discovery.backend(name).open(2)
        return self.devices[name]


@pytest.fixture(scope="module")
def opened() -> Opened:
    return Opened({})


def build(op: Op, sample: Sample) -> Graph:
    g = Builder()
    operands = []
    for i, kind in enumerate(sample.inputs):
        make = g.state if op.writes == i else g.input
        operands.append(make(f"operand_{i}", kind.dtype, kind.shape))
    results = g.results(g.make(op, *operands, name=None, **sample.attributes))
    return g.finish(**{f"result_{i}": node for i, node in enumerate(results)})


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape).astype(np.float32)


def values_for(sample: Sample, dims: dict[str, int]) -> dict[str, Array]:
    generator = np.random.default_rng(7)
    values = {}
    for i, kind in enumerate(sample.inputs):
        shape = resolve(kind.shape, dims)
        make = sample.fill.get(i, normal)
        values[f"operand_{i}"] = np.asarray(make(generator, shape), kind.dtype.numpy)
    return values


def run(graph: Graph, device: Device, values: dict[str, Array], dims: dict[str, int]) -> dict[str, Array]:
    weights = {name: values[name] for name in graph.leaves("weight")}
    program = device.lower(graph, plan_memory(graph, device), weights, no_progress)
    state = device.state(graph, dims)
    for name, value in values.items():
        if name in program.inputs:
            program.inputs[name][tuple(slice(n) for n in value.shape)] = value
        elif name not in weights:
            state.array(name)[...] = value
    return {name: array.copy() for name, array in program.run(dims, state).items()}


def nmse(got: Array, want: Array) -> float:
    """Where one has NaN or infinity the other must have the same; the rest is compared."""
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    got, want = got[finite].astype(np.float64), want[finite].astype(np.float64)
    return float(((got - want) ** 2).sum() / max((want**2).sum(), 1e-300))


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("backend", discovery.backend_names())
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_op_means_the_same_everywhere(
    op: Op, sample: Sample, backend: str, rows: int, opened: Opened
) -> None:
    dims = {"T": rows}
    graph = build(op, sample)
    values = values_for(sample, dims)
    wanted = interpret(graph, {name: value.copy() for name, value in values.items()})
    made = run(graph, opened.get(backend), values, dims)
    for name, want in wanted.items():
        got = made[name]
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if want.dtype == np.int32:
            assert np.array_equal(got, want)
        else:
            assert nmse(got, want) <= LIMITS.get(op.name, NMSE_LIMIT)


def weights_of(format: Format, *shape: int) -> Array:
    """Weights as a graph holds them: encoded normal numbers, else random blocks of ordinary numbers."""
    n, k = math.prod(shape[:-1]), shape[-1]
    if format.encode is not None:
        normal = np.random.default_rng(n).standard_normal((n, k), np.float32)
        made = np.ascontiguousarray(quantize(format, normal)).view(np.uint8)
    else:
        made = ordinary_weights(format, n, k)
    plain = dtype(format.name).numpy
    return made.reshape(*shape[:-1], -1) if plain is None else made.view(plain).reshape(shape)


def products(kind: str, format: Format, rows: int) -> tuple[Graph, dict[str, Array]]:
    """A graph with a weight of a format, as an architecture builds it, and values for its leaves."""
    g, random, tokens = Builder(), np.random.default_rng(rows), Symbol("T", rows)
    shape = {"linear": (35, 512), "linear_id": (5, 19, 256), "get_rows": (11, 256)}[kind]
    values: dict[str, Array] = {"weight": weights_of(format, *shape)}
    values["x"] = random.standard_normal((rows, shape[-1]), np.float32)
    values["ids"] = random.integers(0, shape[0], (rows, 2), np.int32)
    weight = g.weight("weight", dtype(format.name), shape)
    x, ids = g.input("x", F32, (tokens, shape[-1])), g.input("ids", I32, (tokens, 2))
    if kind == "linear":
        values |= {"bias": values["x"][0, :35].copy(), "residual": values["x"][:, 35:70].copy()}
        bias, residual = g.weight("bias", F32, (35,)), g.input("residual", F32, (tokens, 35))
        result = g.add(residual, g.add(g.mul_mat(weight, x), bias))
    else:
        result = g.mul_mat_id(weight, x, ids) if kind == "linear_id" else g.rows(weight, ids)
    graph = g.finish(result=result)
    leaves = {node.name for node in graph.nodes if node.op in LEAVES}
    return graph, {name: value for name, value in values.items() if name in leaves}


def _format_cases() -> list[Any]:
    """Every format in every product; on the CPU, which compiles them, of most formats the largest kernel.

    Its formats differ in their readers alone, and tests/cpu/test_mul_mat.py looks at each of these.
    """
    cases = itertools.product(
        WEIGHT_FORMATS, ["linear", "linear_id", "get_rows"], discovery.backend_names(), (1, 5)
    )
    few = ("f32", "f16", "q4_0", "q6_k")
    return [
        pytest.param(format, kind, backend, rows, id=f"{format.name}-{kind}-{backend}-{rows}")
        for format, kind, backend, rows in cases
        if backend != "cpu" or format.name in few or kind == "get_rows" or (kind, rows) == ("linear", 5)
    ]


@pytest.mark.parametrize(("format", "kind", "backend", "rows"), _format_cases())
def test_weights_of_every_format_mean_the_same_everywhere(
    format: Format, kind: str, backend: str, rows: int, opened: Opened
) -> None:
    graph, values = products(kind, format, rows)
    device = opened.get(backend)
    final = prepare(graph, discovery.backend(backend), device)[0]
    converted = any(node.op is quantize_op for node in final.nodes)
    assert converted == (
        kind != "get_rows" and discovery.backend(backend).activation(dtype(format.name)) is not None
    )
    want = interpret(final if converted else graph, values)["result"]
    got = run(final, device, values, {"T": rows})["result"]
    assert got.shape == want.shape
    assert nmse(got, want) <= (INT8_ACTIVATIONS_LIMIT if converted else NMSE_LIMIT)


CONVERSIONS = [
    pytest.param(op, sample, id=f"{name}-{i}")
    for name, op in sorted(all_ops().items())
    for i, sample in enumerate(op.samples() if op not in LEAVES else [])
    if any(kind.dtype.is_format for kind in result_types(op, sample))
]


CONVERTING = [
    name for name in discovery.backend_names() if discovery.backend(name).activation(dtype("q4_1")) is not None
]


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("backend", CONVERTING)
@pytest.mark.parametrize(("op", "sample"), CONVERSIONS)
def test_what_is_converted_means_the_same_in_a_product(
    op: Op, sample: Sample, backend: str, rows: int, opened: Opened
) -> None:
    """Converted as the backend wants it; the layout is its own, so a product with it is looked at."""
    chosen, form = discovery.backend(backend), next(f for f in WEIGHT_FORMATS if f.name == "q4_1")
    kind = chosen.activation(dtype("q4_1"))
    assert kind is not None
    g = Builder()
    operands = [g.input(f"operand_{i}", of.dtype, of.shape) for i, of in enumerate(sample.inputs)]
    results = g.results(g.make(op, *operands, **{**sample.attributes, "dtype": kind.name}))
    (converted,) = (node for node in results if node.dtype.is_format)
    width = fixed(converted.shape[-1])
    weight = g.weight("weight", dtype("q4_1"), (35, width))
    graph = g.finish(result=g.make(linear, weight, converted))
    values = {**values_for(sample, {"T": rows}), "weight": weights_of(form, 35, width)}
    want = interpret(graph, values)["result"]
    got = run(graph, opened.get(backend), values, {"T": rows})["result"]
    assert nmse(got, want) <= INT8_ACTIVATIONS_LIMIT
