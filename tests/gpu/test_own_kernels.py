"""Kernels of ops of one's own for GPUs, in the language and as texts: what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graphml_gpu.language as gpu
import numpy as np
import pytest
from graphml_gpu.kernels.grid import element_number

from graphml.conformance import suite
from graphml.conformance.own_ops import check_own_ops
from graphml.ir.dtype import F16, F32, I32
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.loading import discovery
from graphml.ops import ROWS, f32, op, sample
from graphml.passes.pipeline import apply_passes
from graphml.passes.plan import plan_memory
from tests.gpu import own_gpu_ops as own
from tests.gpu.on_devices import REAL, device, nmse, run_both

CLOSE = 1e-9
FORMS = ("language", "text")
WIDTHS = (1, 63, 64, 65, 130)


def rows_of(widths: tuple[int, ...], most: int, make: Callable[[Builder, Node], Node]) -> Graph:
    g, tokens = Builder(), Symbol("T", most)
    return g.finish(**{f"y{n}": make(g, g.input(f"x{n}", F32, (tokens, n))) for n in widths})


def numbers(graph: Graph, n_rows: int) -> dict[str, Array]:
    random = np.random.default_rng(n_rows)
    leaves = graph.leaves("input")
    return {
        name: random.standard_normal((n_rows, *leaf.shape[1:]), np.float32) for name, leaf in leaves.items()
    }


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_rows", [1, 5])
def test_rows_are_as_in_numpy(form: str, name: str, n_rows: int) -> None:
    own.with_kernels_softpick(form)
    graph = rows_of(WIDTHS, 5, lambda g, x: g.softpick(x, eps=1e-3))
    values = numbers(graph, n_rows)
    values["x65"][0, 7] = np.nan
    made, wanted = run_both(graph, values, name, T=n_rows)
    assert np.isnan(wanted["y65"][0]).all()
    assert max(nmse(made[key], wanted[key]) for key in wanted) < CLOSE


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("form", FORMS)
def test_elements_and_grids_of_ones_own_are_as_in_numpy(form: str, name: str) -> None:
    own.with_kernels_hadamard(form)
    graph = rows_of((1, 4, 64), 3, lambda g, x: g.hadamard(x))
    made, wanted = run_both(graph, numbers(graph, 3), name, T=3)
    assert max(nmse(made[key], wanted[key]) for key in wanted) < CLOSE


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("form", FORMS)
def test_conformance(form: str, name: str) -> None:
    own.with_kernels_softpick(form)
    own.with_kernels_hadamard(form)
    backend = discovery.backend(name)
    found = list(suite.check(backend, device(name), suite.chosen(backend, "softpick,hadamard")))
    assert len(found) > 10
    assert not [verdict for verdict in found if verdict.failed or verdict.refused]


@pytest.mark.parametrize("name", ["python", *REAL])
def test_results_attributes_and_halves(name: str) -> None:
    own.mixed().kernel("wgpu", "opencl", groups="element")(own.mixed_elements)
    g = Builder()
    x, at = g.input("x", F32, (Symbol("T", 3), 6)), g.input("at", I32, (Symbol("T", 3), 1))
    both = g.mixed(x, g.input("halves", F16, (6,)), at, shift=-3, flip=False, mode="twice")
    first, second = g.results(both)
    graph = g.finish(a=g.scale(first, 1.0, 0.0), b=second)
    random = np.random.default_rng(0)
    values = {"x": random.standard_normal((3, 6), np.float32), "at": np.array([[1], [5], [9]], np.int32)}
    values["halves"] = random.standard_normal(6).astype(np.float16)
    made, wanted = run_both(graph, values, name, T=3)
    assert nmse(made["a"], wanted["a"]) < CLOSE
    assert np.array_equal(made["b"], wanted["b"])


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("form", FORMS)
def test_a_result_in_place_of_an_operand(form: str, name: str) -> None:
    own.with_kernels_softpick(form)
    graph = rows_of((70,), 3, lambda g, x: g.softpick(g.neg(x)))
    node = graph.outputs["y70"]
    plan = plan_memory(graph, device(name))
    assert plan.offsets[node] == plan.offsets[node.inputs[0]]
    made, wanted = run_both(graph, numbers(graph, 3), name, T=3)
    assert nmse(made["y70"], wanted["y70"]) < CLOSE


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("form", FORMS)
def test_more_rows_than_a_grid_has_workgroups_in_a_line(form: str, name: str) -> None:
    own.with_kernels_softpick(form)
    graph = rows_of((2,), 70000, lambda g, x: g.softpick(x))
    made, wanted = run_both(graph, numbers(graph, 70000), name, T=70000)
    assert nmse(made["y2"], wanted["y2"]) < CLOSE


@pytest.mark.parametrize("name", REAL)
def test_a_fused_op(name: str) -> None:
    plain = own.with_kernels_softpick("language")
    fused = own.softpick_mul(plain)
    graph = rows_of((65,), 3, lambda g, x: g.mul(g.softpick(x, eps=1e-3), g.neg(x)))
    backend = discovery.backend(name)
    assert fused not in {node.op for node in apply_passes(graph, backend, ["softpick_mul"]).nodes}
    fused.kernel("wgpu", "opencl", groups="row")(own.softpick_mul_rows)
    after = apply_passes(graph, backend, ["softpick_mul"])
    assert [node.op.name for node in after.nodes if node.inputs] == ["neg", "softpick_mul"]
    made, wanted = run_both(after, numbers(graph, 3), name, T=3)
    assert nmse(made["y65"], wanted["y65"]) < CLOSE


def signed_elements(
    x: gpu.Read[gpu.f32], out: gpu.Write[gpu.f32], count: gpu.u32, *, factor: float, GROUP: int = 64
) -> None:
    i = element_number()
    if i < count:
        out[i] = x[i] * gpu.f32(factor)


@pytest.mark.parametrize("name", ["python", *(one for one in REAL if one != "wgpu")])  # may ignore the sign
def test_a_constant_of_minus_zero_is_another_kernel(name: str) -> None:
    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8))])
    def signed(x: Array, *, factor: float = 0.0) -> Array:
        return x * np.float32(factor)

    signed.kernel("wgpu", "opencl", groups="element")(signed_elements)
    g = Builder()
    x = g.input("x", F32, (Symbol("T", 2), 8))
    graph = g.finish(plus=g.call(signed, x), minus=g.call(signed, x, factor=-0.0))
    made, wanted = run_both(graph, {"x": np.ones((2, 8), np.float32)}, name, T=2)
    kernel = gpu.kernel(signed_elements)
    assert kernel.specialise(factor=-0.0) is not kernel.specialise(factor=0.0)
    assert kernel.specialise(factor=-0.0) is kernel.specialise(factor=-0.0)
    for key in wanted:
        assert np.array_equal(np.signbit(made[key]), np.signbit(wanted[key]))


def one_too_many(x: gpu.Read[gpu.f32], out: gpu.Write[gpu.f32], count: gpu.u32, *, GROUP: int = 64) -> None:
    i = element_number()
    if i < count:
        out[i] = x[i]
        if i + 1 == count:
            out[count] = 7.0


@pytest.mark.skipif("opencl" not in REAL, reason="wgpu writes nothing out of bounds")
def test_a_write_past_the_end_is_found_where_no_padding_follows() -> None:
    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 128))])
    def copied(x: Array) -> Array:
        return x

    copied.kernel("opencl", groups="element")(one_too_many)
    (result,) = check_own_ops([copied], discovery.backend("opencl"), [1], timed=False)
    assert "wrote out of bounds: 1 of the 256 words" in result.failed[0].problem


@pytest.mark.parametrize("name", REAL)
def test_the_text_of_a_kernel_of_the_language_is_a_text(name: str) -> None:
    """As GRAPHML_DEBUG=kernels shows it, for any device."""
    made = gpu.kernel(own.softpick_rows).specialise(device(name).memory.features)
    plain = own.softpick()
    options: dict[str, Any] = {**own.SOFTPICK, "workgroup": 64, "entry": "softpick_rows"}
    plain.kernel("wgpu", **options)(made.wgsl(writable=("x",), stored=True))
    plain.kernel("opencl", **options)(made.opencl())
    graph = rows_of((65,), 3, lambda g, x: g.softpick(g.softpick(x)))
    got, wanted = run_both(graph, numbers(graph, 3), name, T=3)
    assert nmse(got["y65"], wanted["y65"]) < CLOSE
