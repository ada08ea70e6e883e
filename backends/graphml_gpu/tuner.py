"""The search for parameters of products: each is checked against float64 before it is timed.

Knows problems, candidates and times; what parameters there are, and where results are kept, is `tuning`'s.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import graphml_quant
import numpy as np

from graphml.backend import Device, Progress, StepTime, Tuned, no_progress
from graphml.errors import BackendError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import Symbol, bounds, max_elements
from graphml.passes.fusions.linear import linear
from graphml.passes.plan import plan_memory
from graphml_gpu import tuning
from graphml_gpu.kernels import formats
from graphml_gpu.memory import Memory
from graphml_gpu.node_support import GpuNodeSupport
from graphml_gpu.program import GpuProgram
from graphml_gpu.tuning import GpuTuning, Parameters, Product

_WORTH = 0.97
_ROUNDS = 7
_CHECKED_ROWS = 64  # weight rows that are multiplied in float64
_WRONG = 1e-6


@dataclass(frozen=True)
class _GpuProblem:
    """A product of the graphs, and a weight that it is made with."""

    product: Product
    weight: Node


def _problems(graphs: Sequence[Graph]) -> list[_GpuProblem]:
    """Every product of a matrix of weights, once."""
    by_shape: dict[Product, _GpuProblem] = {}
    for node in (node for graph in graphs for node in graph.nodes):
        if node.op.name not in ("linear", "linears", "mul_mat_glu", "mul_mat"):
            continue
        x = node.inputs[{"linears": 0, "mul_mat_glu": 2}.get(node.op.name, 1)]
        for weight in node.inputs:
            known = weight.op is weight_leaf and weight.dtype.name in formats.names()
            if known and len(weight.shape) == 2:
                n, k = bounds(weight.shape)
                shape = Product(weight.dtype.name, n, k, max_elements(x.shape[:-1]), x.dtype.name)
                by_shape.setdefault(shape, _GpuProblem(shape, weight))
    return list(by_shape.values())


class _GpuBench:
    """One problem on the device, made with any parameters."""

    def __init__(self, problem: _GpuProblem, weight: Array, device: Device, memory: Memory) -> None:
        self._device, self._memory, self._weight, product = device, memory, weight, problem.product
        g = Builder()
        node = g.weight("w", problem.weight.dtype, (product.n, product.k))
        x = g.input("x", F32, (Symbol("T", product.columns), product.k))
        self._x = np.random.default_rng(product.k).standard_normal((product.columns, product.k), np.float32)
        exact = self._x
        if product.activations != F32.name:
            x = g.call(quantize, x, dtype=product.activations)
            kind = graphml_quant.by_name(product.activations)
            exact = graphml_quant.dequantize(kind, graphml_quant.quantize(kind, exact), exact.shape)
        self._graph = g.finish(y=g.call(linear, node, x))
        self._product = product
        self._wanted = exact.astype(np.float64) @ self._decoded().T

    def _decoded(self) -> Array:
        rows = np.ascontiguousarray(self._weight[:_CHECKED_ROWS]).view(np.uint8)
        kind = graphml_quant.by_name(self._product.format)
        shape = (min(_CHECKED_ROWS, self._product.n), self._product.k)
        return graphml_quant.dequantize(kind, rows, shape).astype(np.float64)

    def made(self, parameters: Parameters, usual: bool) -> GpuProgram | None:
        """The product with some parameters; None where the device cannot run it with others than the usual.

        `BackendError` where the product is wrong.
        """
        plan = plan_memory(self._graph, self._device)
        chosen, memory = GpuTuning({self._product: parameters}), self._memory
        try:
            support = GpuNodeSupport(memory.driver.facts.backend)
            program = GpuProgram(self._graph, plan, {"w": self._weight}, memory, no_progress, support, chosen)
            program.inputs["x"][...] = self._x
            y = self._run(program)["y"][:, : self._wanted.shape[1]]
        except BackendError:  # too many registers for the group, say, which only the compiler knows
            if usual:
                raise
            return None
        error = ((y - self._wanted) ** 2).sum() / max((self._wanted**2).sum(), 1e-300)
        if not error < _WRONG:
            raise BackendError(f"{self._product} with {dict(parameters)} is wrong, NMSE {error:.3g}")
        return program

    def _run(self, program: GpuProgram) -> Mapping[str, Array]:
        return program.run({"T": self._product.columns}, self._device.state(self._graph, {}))

    def seconds(self, program: GpuProgram) -> float:
        """One call on the device's clock."""
        times: list[StepTime] = []
        program.time_steps(lambda dims, steps: times.extend(steps()))
        self._run(program)
        program.time_steps(None)
        return sum(step.work_s[0] for step in times)

    def medians(self, programs: Sequence[GpuProgram]) -> list[float]:
        """Seconds of each, in turns; the first round is thrown away."""
        rounds = [[self.seconds(program) for program in programs] for _ in range(_ROUNDS + 1)][1:]
        return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _search(bench: _GpuBench, every: Sequence[Parameters]) -> tuple[Parameters, float, float]:
    """The best parameters (none: the usual), seconds with the usual and with these."""
    built = [(parameters, bench.made(parameters, usual=i == 0)) for i, parameters in enumerate(every)]
    candidates = [parameters for parameters, program in built if program is not None]
    programs = [program for _, program in built if program is not None]
    times = bench.medians(programs)
    best = min(range(len(times)), key=times.__getitem__)
    if best == 0 or times[best] >= _WORTH * times[0]:
        return {}, times[0], times[0]
    before, after = bench.medians([programs[0], programs[best]])
    return (candidates[best], before, after) if after < _WORTH * before else ({}, before, before)


def tune(
    graphs: Sequence[Graph], weights: Mapping[str, Array], device: Device, memory: Memory, progress: Progress
) -> list[Tuned]:
    """See `graphml.backend.TunableDevice`. memory: the device's."""
    problems, facts = _problems(graphs), memory.driver.facts
    tuned = []
    for done, problem in enumerate(problems):
        progress("tune", done, len(problems))
        product = problem.product
        bench = _GpuBench(problem, np.asarray(weights[problem.weight.name]), device, memory)
        parameters, usual_s, tuned_s = _search(bench, tuning.candidates(facts, product))
        result = {"parameters": dict(parameters), "usual_s": usual_s, "tuned_s": tuned_s}
        tuning.save(facts, {product: result})  # now: who interrupts the rest keeps this
        few = tuning.takes_few(facts, product.columns, product.activations)
        kernel = "mat_vec" if few else "mat_mul" if product.activations == F32.name else "mat_mul_int8"
        shape = f"{product.n} x {product.k}, {product.columns} rows"
        tuned.append(Tuned(f"{kernel}-{product.format}", shape, dict(parameters), usual_s, tuned_s))
    progress("tune", len(problems), len(problems))
    return tuned
