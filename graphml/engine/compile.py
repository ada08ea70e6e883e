"""The compiler: one function that lists the passes in order, from a built graph to a program that runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from graphml import settings
from graphml.backend import Backend, Device, Plan, Program, Progress, no_progress
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.ir.verify import verify
from graphml.passes.activations import quantize_activations
from graphml.passes.fusion import FusionCount, fuse, fusions
from graphml.passes.plan import plan_memory

T = TypeVar("T")

_DECODE_SLACK = 6  # steps of one token are so short that threads run ahead into the next ones


@dataclass(frozen=True)
class Compiled:
    """A program and how it came about: the graph after each pass, the plan, fusions and seconds per pass."""

    graph: Graph
    plan: Plan
    program: Program
    fusions: FusionCount
    snapshots: Mapping[str, Graph]
    seconds: Mapping[str, float]


@dataclass
class _Trail:
    """Runs passes, keeps their results and times; verifies between them when the settings say so."""

    snapshots: dict[str, Graph] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, name: str, step: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = step()
        self.seconds[name] = time.perf_counter() - start
        return result

    def graph(self, name: str, step: Callable[[], Graph]) -> Graph:
        graph = self.run(name, step)
        self.snapshots[name] = verify(graph) if settings.verify() else graph
        return graph


def prepare(graph: Graph, backend: Backend, device: Device) -> tuple[Graph, Plan, FusionCount, _Trail]:
    """The passes that need no weights: everything but the last."""
    trail = _Trail()
    trail.graph("build", lambda: graph)
    wanted = {f.replace for f in fusions().values() if f.replace.name in backend.fused}
    counts = FusionCount({}, {})

    def fused() -> Graph:
        nonlocal counts
        changed, counts = fuse(graph, wanted)
        return changed

    graph = trail.graph("fuse", fused)
    graph = trail.graph("quantize_activations", lambda: quantize_activations(graph, backend))
    slack = (
        _DECODE_SLACK
        if all(symbol.bound == 1 for symbol in graph.symbols().values() if symbol.name == "T")
        else 0
    )
    plan = trail.run("plan", lambda: plan_memory(graph, device, slack))
    return graph, plan, counts, trail


def compile_graph(
    graph: Graph,
    backend: Backend,
    device: Device,
    weights: Mapping[str, Array],
    progress: Progress = no_progress,
) -> Compiled:
    """Compile a graph for a device; weights: name -> array, as the graph's dtypes hold them."""
    final, plan, counts, trail = prepare(graph, backend, device)
    program = trail.run("lower", lambda: device.lower(final, plan, weights, progress))
    return Compiled(final, plan, program, counts, trail.snapshots, trail.seconds)
