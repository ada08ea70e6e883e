"""Every op, plain and fused, with every sample on every backend against its meaning in NumPy.

An op, a fusion or a backend that is added is tested here unasked; what has no kernel runs its fallback.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from graphml.backend import Device, no_progress
from graphml.engine import discovery
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.op import Array, Op, Sample
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import resolve
from graphml.passes.fusion import all_ops
from graphml.passes.plan import plan_memory

NMSE_LIMIT = 1e-10  # float32 throughout: rounding and vectorised exp only
LIMITS = {"attention": 1e-9}
CASES = [
    pytest.param(op, sample, id=f"{name}-{i}")
    for name, op in sorted(all_ops().items())
    # The layout of converted activations is each backend's own: products with them are compared instead.
    if op not in LEAVES and op is not quantize
    for i, sample in enumerate(op.samples())
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
    return g.finish(result=g.make(op, *operands, **sample.attributes))


def values_for(sample: Sample, dims: dict[str, int]) -> dict[str, Array]:
    generator = np.random.default_rng(7)
    values = {}
    for i, kind in enumerate(sample.inputs):
        shape = resolve(kind.shape, dims)
        make = sample.fill.get(i, lambda g, s: g.standard_normal(s).astype(np.float32))
        values[f"operand_{i}"] = np.asarray(make(generator, shape), kind.dtype.numpy)
    return values


def run(graph: Graph, device: Device, values: dict[str, Array], dims: dict[str, int]) -> Array:
    program = device.lower(graph, plan_memory(graph, device), {}, no_progress)
    state = device.state(graph, dims)
    for name, value in values.items():
        if name in program.inputs:
            program.inputs[name][tuple(slice(n) for n in value.shape)] = value
        else:
            state.array(name)[...] = value
    return program.run(dims, state)["result"].copy()


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
    want = interpret(graph, {name: value.copy() for name, value in values.items()})["result"]
    got = run(graph, opened.get(backend), values, dims)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype == np.int32:
        assert np.array_equal(got, want)
    else:
        assert nmse(got, want) <= LIMITS.get(op.name, NMSE_LIMIT)
