"""Norms, activations and gates that convert their results to 8 bits on GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from graphml_cpu import BACKEND as CPU
from graphml_gpu.backend import make_backend
from graphml_gpu.device import GpuDevice
from graphml_gpu.plain_driver import PlainDriver
from graphml_gpu.program import GpuProgram

from graphml.backend import no_progress, on_device
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.linear import decode, quantize
from graphml.ir.shape import Symbol, bounds
from graphml.passes.fusion import fusions
from graphml.passes.fusions.add_norm import add_rms_norm
from graphml.passes.fusions.gelu_quantize import gelu_quantize
from graphml.passes.fusions.glu_quantize import geglu_quantize, swiglu_quantize
from graphml.passes.fusions.norm_quantize import layer_norm_mul_quantize, rms_norm_mul_quantize
from graphml.passes.pipeline import apply_passes
from graphml.passes.plan import plan_memory
from tests.gpu.on_devices import CARD, DEVICES, SUBGROUPS, device, nmse, run_both

INT8 = dtype("q8_1")
MULTIPLIES = dataclasses.replace(SUBGROUPS, kind="discrete", has_dot4=True, max_bindings=16)
"""A graphics card that multiplies four bytes in one instruction."""
Made = Callable[[Builder, Node, Node, Node, Node], Node]
OPS: dict[str, Made] = {
    "": lambda g, x, y, a, b: g.call(quantize, x, dtype="q8_1"),
    "rms_norm": lambda g, x, y, a, b: g.call(rms_norm_mul_quantize, x, a, dtype="q8_1"),
    "layer_norm": lambda g, x, y, a, b: g.call(layer_norm_mul_quantize, x, a, dtype="q8_1"),
    "layer_norm and bias": lambda g, x, y, a, b: g.call(
        layer_norm_mul_quantize, x, a, b, bias=True, dtype="q8_1"
    ),
    "sum and norm": lambda g, x, y, a, b: g.results(g.call(add_rms_norm, x, y, a, dtype="q8_1"))[1],
    "gelu": lambda g, x, y, a, b: g.call(gelu_quantize, x, dtype="q8_1"),
    "swiglu": lambda g, x, y, a, b: g.call(swiglu_quantize, x, y, dtype="q8_1"),
    "geglu": lambda g, x, y, a, b: g.call(geglu_quantize, x, y, dtype="q8_1"),
}


def converted(op: str, rows: int, n: int) -> tuple[Graph, dict[str, Array]]:
    """A graph of one op with the result y, and values for it."""
    g, random = Builder(), np.random.default_rng(n)
    x, y = (g.input(name, F32, (Symbol("T", rows), n)) for name in "xy")
    a, b = (g.weight(name, F32, (n,)) for name in "ab")
    graph = g.finish(y=OPS[op](g, x, y, a, b))
    values = {name: random.standard_normal((rows, n)).astype(np.float32) + 1 for name in "xy"}
    return graph, {**values, **{name: random.standard_normal(n).astype(np.float32) for name in "ab"}}


@pytest.mark.parametrize("name", [*DEVICES, CARD])
@pytest.mark.parametrize("n", [32, 96, 1056])
@pytest.mark.parametrize("op", OPS)
def test_results_are_converted_as_in_numpy(op: str, n: int, name: str) -> None:
    """But for numbers that a last bit rounds to their neighbour."""
    graph, values = converted(op, 3, n)
    values["x"][1] = 0.0
    made, wanted = run_both(graph, values, name, T=3)
    assert nmse(decode(made["y"], INT8), decode(wanted["y"], INT8)) <= 1e-5


@pytest.mark.parametrize("op", OPS)
def test_groups_with_a_nan_become_nan(op: str) -> None:
    """NumPy refuses to convert one."""
    graph, values = converted(op, 2, 96)
    values["x"][0, 40] = np.nan
    opened = device(CARD)
    weights = {name: values[name] for name in graph.leaves("weight")}
    program = opened.lower(graph, plan_memory(graph, opened), weights, no_progress)
    for name, array in program.inputs.items():
        array[...] = values[name]
    found = np.isnan(decode(program.run({"T": 2}, opened.state(graph, {"T": 2}))["y"], INT8))
    assert found[0, 32:64].all()
    assert found[0].all() == ("norm" in op)
    assert not found[1].any()


def passed(graph: Graph, card: GpuDevice) -> Graph:
    """The graph after all passes for a device."""
    backend = make_backend("plain", lambda: card.memory.driver, unavailable=lambda: None)
    return apply_passes(graph, on_device(backend, card), set(fusions()))


def names(graph: Graph) -> list[str]:
    """The ops that compute."""
    return [node.op.name for node in graph.nodes if node.op.family != "leaf" and not node.op.view]


def kernels(graph: Graph, card: GpuDevice) -> list[str]:
    """The kernels of its program."""
    stored: dict[str, Array] = {}
    for name, node in graph.leaves("weight").items():
        *lead, last = bounds(node.shape)
        raw = np.zeros((*lead, node.dtype.bytes_for(last)), np.uint8)
        stored[name] = raw.view(node.dtype.numpy or np.uint8)
    program = GpuProgram(graph, plan_memory(graph, card), stored, card.memory, no_progress, card.support)
    return [dispatch.kernel.name for _, dispatch in program.dispatches]


def before_products(kind: str, rows: int) -> Graph:
    """What meets quantised weights: of two kinds of norm, an activation, a gate of one tensor, one of two."""
    g = Builder(max_tokens=rows)
    x, y = (g.input(name, F32, (g.n_tokens, 64)) for name in "xy")
    a, b = (g.weight(name, F32, (64,)) for name in "ab")
    gate, up = (g.mul_mat(g.weight(name, dtype("q8_0"), (64, 64)), x) for name in ("gate", "up"))
    before = {
        "rms_norm_mul_quantize": lambda: g.rms_norm(x, a, 1e-5),
        "layer_norm_mul_quantize": lambda: g.layer_norm(x, a, b, 1e-5),
        "gelu_quantize": lambda: g.gelu(x),
        "swiglu_quantize": lambda: g.mul(g.silu(x), y),
        "mul_mat_glu": lambda: g.mul(g.silu(gate), up),
    }[kind]()
    return g.finish(z=g.mul_mat(g.weight("w", dtype("q8_0"), (64, 64)), before))


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [
        ("rms_norm_mul_quantize", "row_norm"),
        ("layer_norm_mul_quantize", "row_norm"),
        ("gelu_quantize", "unary_int8"),
        ("swiglu_quantize", "binary_int8"),
    ],
)
def test_what_products_read_is_converted_where_it_is_made(kind: str, kernel: str) -> None:
    """Of several rows; one row is made by the product, but for a gate."""
    card = GpuDevice(PlainDriver(MULTIPLIES))
    several, one = (passed(before_products(kind, rows), card) for rows in (3, 1))
    assert names(several) == names(one) == [kind, "linear"]
    assert kernels(several, card) == [kernel, "mat_vec"]
    assert kernels(one, card) == (["binary_int8", "mat_vec"] if kind == "swiglu_quantize" else ["mat_vec"])
    assert CPU.fused.isdisjoint({"layer_norm_mul_quantize", "gelu_quantize"})


def test_a_gate_of_products_is_left_to_them() -> None:
    """Their kernel makes it, in as many dispatches: fewer for one row, which the next product converts."""
    graph = passed(before_products("mul_mat_glu", 3), GpuDevice(PlainDriver(MULTIPLIES)))
    assert names(graph) == ["quantize", "mul_mat_glu", "quantize", "linear"]


def test_without_products_of_bytes_nothing_is_converted() -> None:
    card = GpuDevice(PlainDriver(dataclasses.replace(MULTIPLIES, has_dot4=False)))
    assert names(passed(before_products("gelu_quantize", 3), card)) == ["gelu", "linear"]


def test_a_norm_that_others_read_too_stays_one() -> None:
    g = Builder()
    normed = g.rms_norm(g.input("x", F32, (Symbol("T", 3), 64)), g.weight("a", F32, (64,)), 1e-5)
    graph = g.finish(y=g.mul_mat(g.weight("w", dtype("q8_0"), (64, 64)), normed), z=g.tanh(normed))
    made = names(passed(graph, GpuDevice(PlainDriver(MULTIPLIES))))
    assert sorted(made) == ["linear", "quantize", "rms_norm_mul", "tanh"]


def test_a_sum_and_its_converted_norm_are_one_dispatch() -> None:
    g = Builder()
    x, y = (g.input(name, F32, (Symbol("T", 3), 64)) for name in "xy")
    total = g.add(x, y)
    normed = g.rms_norm(total, g.weight("a", F32, (64,)), 1e-5)
    graph = g.finish(z=g.mul_mat(g.weight("w", dtype("q8_0"), (64, 64)), normed), total=total)
    card = GpuDevice(PlainDriver(MULTIPLIES))
    made = passed(graph, card)
    assert names(made) == ["add_rms_norm", "linear"]
    assert kernels(made, card) == ["add_row_norm", "mat_vec"]
