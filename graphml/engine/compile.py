"""The compiler: one function that lists the passes in order, from a built graph to a program that runs."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from graphml import settings
from graphml.backend import Backend, Device, Plan, Program, Progress, no_progress, on_device
from graphml.engine.parts import (
    PartsDevice,
    ReadyPart,
    backends_of,
    join,
    lower_parts,
    share_arenas,
    whole_plan,
)
from graphml.errors import UsageError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.verify import verify
from graphml.passes.activations import quantize_activations
from graphml.passes.fusion import FusionLog, fuse, fusions
from graphml.passes.patch import Patch, patch
from graphml.passes.place import Placement, parse_rules, place, refusals, refuse_fallbacks
from graphml.passes.plan import plan_memory
from graphml.passes.switches import nearest, switched

T = TypeVar("T")

_DECODE_SLACK = 6  # steps of one token are so short that threads run ahead into the next ones


@dataclass(frozen=True)
class CompileOptions:
    """What the caller may choose about compilation.

    fuse: which fusions are on, as `graphml.passes.switches.switched` reads it; "" leaves it to GRAPHML_FUSE,
    which defaults to all. keep: names of nodes as built, or patterns (`layers.*.q`), whose values are wanted:
    each becomes an output `value:NAME`, and no fusion may swallow it. strict: refuse a node that the backend
    cannot run itself. place: where nodes go if there are several backends, as
    `graphml.passes.place.parse_rules` reads it. patch: functions of the user's put into the graph as it is
    built; `keep` sees what they make. pooling: what texts are pooled by if embeddings are wanted, a name of
    `graphml.engine.pooling.POOLINGS`; "": what the architecture gives, logits for most.
    """

    fuse: str = ""
    keep: tuple[str, ...] = ()
    strict: bool = False
    place: str = ""
    patch: tuple[Patch, ...] = ()
    pooling: str = ""

    def fusions(self) -> frozenset[str]:
        """The names of the fusions that are on; a `UsageError` for a name that no fusion has."""
        if not isinstance(self.fuse, str):
            raise UsageError(f"fuse: wanted names in one text, got {self.fuse!r}")
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
    placement: Placement | None = None  # of a graph on several backends
    parts: tuple[ReadyPart, ...] = ()
    backends: Mapping[Node, str] = field(default_factory=dict)  # of the nodes, where there are several


@dataclass
class _Trail:
    """Runs passes, keeps their results and times; verifies between them when the settings say so."""

    placement: Placement | None = None
    parts: tuple[ReadyPart, ...] = ()
    backends: Mapping[Node, str] = field(default_factory=dict)
    snapshots: dict[str, Graph] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, name: str, step: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = step()
        self.seconds[name] = time.perf_counter() - start
        return result

    def graph(self, name: str, step: Callable[[], Graph], seconds: float = 0.0) -> Graph:
        """Keep the graph that a step gives. seconds: what it took before, to be told with the step's."""
        graph = self.run(name, step)
        self.seconds[name] += seconds
        self.snapshots[name] = verify(graph) if settings.verify() else graph
        return graph


def keep_values(graph: Graph, patterns: Iterable[str]) -> Graph:
    """Make an output `value:NAME` of every node that a name or pattern names.

    A leaf is no computed value and no pattern finds it. A pattern that finds nothing is a `UsageError`.
    """
    names = {node.name: node for node in graph.nodes if node.op.family != "leaf" and not node.op.is_write}
    found: dict[str, Node] = {}
    for pattern in patterns:
        hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        if not hits:
            raise UsageError(f"keep: no value of the graph is called {pattern!r}.{_instead(pattern, names)}")
        found |= {f"value:{name}": names[name] for name in hits}
    return Graph(graph.nodes, {**graph.outputs, **found})


def _instead(name: str, names: Collection[str]) -> str:
    """A hint for a name that only a pass gives: what it is made of, else the names like it."""
    scope, dot, last = name.rpartition(".")
    parts = [scope + dot + part for part in last.split("+")]
    if len(parts) > 1 and all(part in names for part in parts):
        return f" A pass makes it of several values: keep {' or '.join(map(repr, parts))}"
    if scope in names:
        return f" If a pass makes it of {scope!r}: keep that"
    return nearest(name, names)


def prepare(
    graph: Graph, backend: Backend, device: Device, options: CompileOptions = DEFAULT
) -> tuple[Graph, Plan, FusionLog, _Trail]:
    """The passes that need no weights: everything but the last."""
    trail = _Trail()
    graph = trail.graph("build", lambda: keep_values(patch(graph, options.patch), options.keep))
    if isinstance(device, PartsDevice):
        return _prepare_parts(graph, device, options, trail)
    backend = on_device(backend, device)
    if options.place:
        parse_rules(options.place, [backend.name])  # on one backend every rule names that one
    log, names = FusionLog(), options.fusions()

    def fused(last: bool = False) -> Graph:
        nonlocal log
        changed, more = _fuse(graph, backend, names, last)
        log += more
        return changed

    graph = trail.graph("fuse", fused)
    graph = trail.graph("quantize_activations", lambda: quantize_activations(graph, backend))
    graph = trail.graph("fuse_quantized", fused)  # what makes a value may make it converted at once
    graph = trail.graph("fuse_last", lambda: fused(last=True))
    if options.strict:
        refuse_fallbacks([(node.name, reason) for node, reason in refusals(graph, backend)])
    plan = trail.run("plan", lambda: plan_memory(graph, device, _slack(graph)))
    return graph, plan, log, trail


def _fuse(
    graph: Graph, backend: Backend, names: Collection[str], last: bool = False
) -> tuple[Graph, FusionLog]:
    """What of the named fusions a backend has kernels for."""
    wanted = {f.replace for f in fusions().values() if f.replace.name in backend.fused}
    return fuse(graph, wanted, names, backend.refuses, last)


def _slack(graph: Graph) -> int:
    tokens = [symbol for symbol in graph.symbols().values() if symbol.name == "T"]
    return _DECODE_SLACK if all(symbol.bound == 1 for symbol in tokens) else 0


def _prepare_parts(
    graph: Graph, device: PartsDevice, options: CompileOptions, trail: _Trail
) -> tuple[Graph, Plan, FusionLog, _Trail]:
    """The same for several backends: place first, then every pass part by part (decision 8).

    The graphs kept are the parts joined again; the plan tells the arenas of all devices together.
    """
    names = options.fusions()
    backends = {backend.name: backend for backend in device.backends}
    rules = parse_rules(options.place, list(backends))

    def shaped(part: Graph, backend: Backend) -> Graph:
        converted = quantize_activations(_fuse(part, backend, names)[0], backend)
        return _fuse(_fuse(converted, backend, names)[0], backend, names, last=True)[0]

    placement = trail.run(
        "place", lambda: place(graph, device.backends, rules, shaped, device.homes(options.place))
    )
    if options.strict:
        refuse_fallbacks([(placed.name, placed.refused or "") for placed in placement.fallbacks])
    parts, outputs = placement.cut.parts, list(graph.outputs)
    trail.graph("place", lambda: join([part.graph for part in parts], outputs)[0], trail.seconds["place"])
    start = time.perf_counter()
    done = [_fuse(part.graph, backends[part.backend], names) for part in parts]
    log = sum((log for _, log in done), FusionLog())
    trail.graph("fuse", lambda: join([part for part, _ in done], outputs)[0], time.perf_counter() - start)
    start = time.perf_counter()
    converted = [quantize_activations(g, backends[p.backend]) for p, (g, _) in zip(parts, done, strict=True)]
    trail.graph("quantize_activations", lambda: join(converted, outputs)[0], time.perf_counter() - start)
    start = time.perf_counter()
    again = [_fuse(g, backends[p.backend], names) for p, g in zip(parts, converted, strict=True)]
    log = sum((log for _, log in again), log)
    trail.graph(
        "fuse_quantized", lambda: join([g for g, _ in again], outputs)[0], time.perf_counter() - start
    )
    start = time.perf_counter()
    finished = [
        _fuse(g, backends[p.backend], names, last=True) for p, (g, _) in zip(parts, again, strict=True)
    ]
    ready, log = [g for g, _ in finished], sum((log for _, log in finished), log)
    final, nodes = join(ready, outputs)
    trail.graph("fuse_last", lambda: final, time.perf_counter() - start)

    def planned() -> tuple[ReadyPart, ...]:
        return tuple(
            ReadyPart(p.backend, g, plan_memory(g, device.devices[p.backend], _slack(graph)))
            for p, g in zip(parts, ready, strict=True)
        )

    trail.placement, trail.parts = placement, share_arenas(trail.run("plan", planned))
    trail.backends = backends_of(trail.parts, nodes)
    device.settle(final, options.place, placement.states(), trail.backends)
    return final, whole_plan(trail.parts, nodes), log, trail


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
    if isinstance(device, PartsDevice) and trail.placement is not None:
        homes = trail.placement.states()
        program: Program = trail.run(
            "lower", lambda: lower_parts(device, trail.parts, homes, weights, progress)
        )
    else:
        program = trail.run("lower", lambda: device.lower(final, plan, weights, progress))
    trail.seconds["build"] += build_seconds
    return Compiled(
        final, plan, program, log, trail.snapshots, trail.seconds, options,
        trail.placement, trail.parts, trail.backends,
    )  # fmt: skip
