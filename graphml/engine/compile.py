"""The compiler: one function that lists the passes in order, from a built graph to a program that runs."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from graphml import settings
from graphml.backend import Backend, Device, Plan, Program, Progress, no_progress
from graphml.errors import UsageError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.verify import verify
from graphml.passes.activations import quantize_activations
from graphml.passes.fusion import FusionLog, fuse, fusions, nearest, switched
from graphml.passes.patch import Patch, patch
from graphml.passes.plan import plan_memory

T = TypeVar("T")

_DECODE_SLACK = 6  # steps of one token are so short that threads run ahead into the next ones


@dataclass(frozen=True)
class CompileOptions:
    """What the caller may choose about compilation.

    fuse: which fusions are on, as `graphml.passes.fusion.switched` reads it; "" leaves it to GRAPHML_FUSE,
    which defaults to all. keep: names of nodes as built, or patterns (`layers.*.q`), whose values are wanted:
    each becomes an output `value:NAME`, and no fusion may swallow it. strict: refuse a node that the backend
    cannot run itself. patch: functions of the user's put into the graph as it is built; `keep` sees what they
    make.
    """

    fuse: str = ""
    keep: tuple[str, ...] = ()
    strict: bool = False
    patch: tuple[Patch, ...] = ()

    def fusions(self) -> frozenset[str]:
        """The names of the fusions that are on; a `UsageError` for a name that no fusion has."""
        return switched(self.fuse, "fuse") if self.fuse else switched(settings.fuse(), "GRAPHML_FUSE")


DEFAULT = CompileOptions()


@dataclass(frozen=True)
class Compiled:
    """A program and how it came about: the graph after each pass, the plan, fusions and seconds per pass."""

    graph: Graph
    plan: Plan
    program: Program
    fusions: FusionLog
    snapshots: Mapping[str, Graph]
    seconds: Mapping[str, float]
    options: CompileOptions = DEFAULT


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


def keep_values(graph: Graph, patterns: Iterable[str]) -> Graph:
    """Make an output `value:NAME` of every node that a name or pattern names.

    A leaf is no computed value and no pattern finds it. A pattern that finds nothing is a `UsageError`.
    """
    names = {node.name: node for node in graph.nodes if node.op.family != "leaf" and node.op.writes is None}
    found: dict[str, Node] = {}
    for pattern in patterns:
        hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        if not hits:
            raise UsageError(f"keep: no value of the graph is called {pattern!r}.{nearest(pattern, names)}")
        found |= {f"value:{name}": names[name] for name in hits}
    return Graph(graph.nodes, {**graph.outputs, **found})


def prepare(
    graph: Graph, backend: Backend, device: Device, options: CompileOptions = DEFAULT
) -> tuple[Graph, Plan, FusionLog, _Trail]:
    """The passes that need no weights: everything but the last."""
    trail = _Trail()
    names = options.fusions()
    wanted = {f.replace for f in fusions().values() if f.replace.name in backend.fused}
    log = FusionLog()

    def fused() -> Graph:
        nonlocal log
        changed, more = fuse(graph, wanted, names)
        log += more
        return changed

    graph = trail.graph("build", lambda: keep_values(patch(graph, options.patch), options.keep))
    graph = trail.graph("fuse", fused)
    graph = trail.graph("quantize_activations", lambda: quantize_activations(graph, backend))
    slack = (
        _DECODE_SLACK
        if all(symbol.bound == 1 for symbol in graph.symbols().values() if symbol.name == "T")
        else 0
    )
    plan = trail.run("plan", lambda: plan_memory(graph, device, slack))
    return graph, plan, log, trail


def compile_graph(
    graph: Graph,
    backend: Backend,
    device: Device,
    weights: Mapping[str, Array],
    progress: Progress = no_progress,
    options: CompileOptions = DEFAULT,
    build_seconds: float = 0.0,
) -> Compiled:
    """Compile a graph for a device; weights: name -> array, as the graph's dtypes hold them.

    build_seconds: what building the graph took, to be told with the seconds of the passes.
    """
    final, plan, log, trail = prepare(graph, backend, device, options)
    program = trail.run("lower", lambda: device.lower(final, plan, weights, progress))
    trail.seconds["build"] += build_seconds
    return Compiled(final, plan, program, log, trail.snapshots, trail.seconds, options)
