"""Compiler: turns a built graph into a program. The passes are listed in `passes.pipeline`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from graphml.backend import (
    AheadProgram,
    Backend,
    Device,
    Plan,
    Program,
    Progress,
    StagedProgram,
    State,
    no_progress,
    on_device,
)
from graphml.compiler.caller_arrays import graph_inputs, named_inputs
from graphml.compiler.multi_device import PartsDevice, lower_parts
from graphml.compiler.options import DEFAULT, CompileOptions
from graphml.compiler.partitions import ReadyPart, backends_of, join, share_arenas, whole_plan
from graphml.errors import GraphError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.verify import verify
from graphml.passes.control_vectors import controlled
from graphml.passes.fusion_log import FusionLog
from graphml.passes.lora import adapted
from graphml.passes.patch import keep_values, patch
from graphml.passes.pipeline import PASSES
from graphml.passes.place import Placement, place
from graphml.passes.placement_rules import parse_rules
from graphml.passes.plan import plan_memory
from graphml.passes.plan_check import check_plan
from graphml.passes.refusals import refusals, refuse_fallbacks

T = TypeVar("T")

BUILD = "build"  # what the graph is called before the first pass

_DECODE_SLACK = 6  # steps of one token are so short that threads run ahead into the next ones


@dataclass(frozen=True)
class Prepared:
    """A graph after all passes that need no weights, its memory plan and a record of the passes.

    snapshots, seconds: the graph after each pass, and the time of the pass. placement, parts: set for a graph
    on several backends; backends: the backend of each node.
    """

    graph: Graph
    plan: Plan
    fusions: FusionLog
    snapshots: Mapping[str, Graph]
    seconds: Mapping[str, float]
    options: CompileOptions = DEFAULT
    placement: Placement | None = None
    parts: tuple[ReadyPart, ...] = ()
    backends: Mapping[Node, str] = field(default_factory=dict)

    def with_seconds(self, **more: float) -> Prepared:
        """A copy with the seconds of other steps; the seconds of a pass of the same name are added."""
        added = {name: self.seconds.get(name, 0.0) + seconds for name, seconds in more.items()}
        return replace(self, seconds={**self.seconds, **added})


@dataclass(frozen=True, kw_only=True)
class Compiled(Prepared):
    """A prepared graph with the program that a device made of it."""

    program: Program

    def __repr__(self) -> str:
        graph = self.snapshots[BUILD]
        inputs = ", ".join(f"{node.name}: {node.type}" for node in graph.nodes if node.op.name == "input")
        outputs = ", ".join(f"{name}: {node.type}" for name, node in graph.outputs.items())
        counts = f"{len(self.graph.nodes)} nodes, {len(self.fusions.applied)} fusions"
        return f"Compiled({inputs} -> {outputs}; {counts}, {self.plan.peak} bytes of values)"

    def __call__(self, *in_order: Any, **inputs: Any) -> dict[str, Array]:
        """Run a graph without states once: its outputs by name, as copies. inputs: arrays or tensors by name.

        in_order: of all inputs that have no keyword, in the order in which the builder made them. UsageError
        names an input that does not fit.
        """
        graph = self.snapshots[BUILD]
        arrays, dims = graph_inputs(graph, {**named_inputs(graph, in_order, inputs), **inputs})
        for name, buffer in self.program.inputs.items():
            buffer[tuple(map(slice, arrays[name].shape))] = arrays[name]
        outputs = self.program.run(dims, cast(State, None))
        return {name: np.array(value) for name, value in outputs.items()}

    @functools.cached_property
    def ahead(self) -> AheadProgram | None:
        """The program, if it takes a step before it has done the one before. Asked for at every step."""
        program = self.program
        return program if isinstance(program, AheadProgram) and program.runs_ahead else None

    @functools.cached_property
    def staged(self) -> StagedProgram | None:
        """The program, if several of its steps may be under way at a time. Asked for at every step."""
        program = self.program
        return program if isinstance(program, StagedProgram) and program.n_stages > 1 else None


@dataclass
class _Record:
    """The graph after each pass, and the seconds of each pass."""

    snapshots: dict[str, Graph] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def timed(self, name: str, step: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = step()
        self.seconds[name] = time.perf_counter() - start
        return result

    def keep(self, name: str, graph: Graph) -> Graph:
        self.snapshots[name] = graph
        return graph

    @contextmanager
    def verified(self) -> Iterator[None]:
        """Refuse what the passes within make of a graph if it is not well formed; the pass is named.

        The graph as built is looked at where something is wrong: the builder has checked each of its nodes.
        """
        try:
            yield
            verify(list(self.snapshots.values())[-1])
        except Exception:
            for name, graph in self.snapshots.items():
                try:
                    verify(graph)
                except GraphError as error:
                    if name == BUILD:
                        raise
                    raise GraphError(f"after the pass {name!r}: {error}") from None
            raise


def prepare(graph: Graph, backend: Backend, device: Device, options: CompileOptions = DEFAULT) -> Prepared:
    """Run the passes that need no weights: all but lowering."""
    record = _Record()
    graph = record.keep(BUILD, record.timed(BUILD, lambda: _built(graph, options)))
    if isinstance(device, PartsDevice):
        return _prepare_parts(graph, device, options, record)
    backend = on_device(backend, device)
    if options.place:
        parse_rules(options.place, [backend.name])  # on one backend every rule names that one
    (graph,), log = _apply_passes([(graph, backend)], options, record, lambda graphs: graphs[0], {})
    if options.strict:
        refuse_fallbacks([(node.name, reason) for node, reason in refusals(graph, backend)])
    plan = record.timed("plan", lambda: _planned(graph, device, slack_of(graph)))
    return Prepared(graph, plan, log, record.snapshots, record.seconds, options)


def _built(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with what the caller adds to it: adapters, control vectors, patches, outputs."""
    adapted_graph = adapted(controlled(graph, options.control), options.adapters)
    return keep_values(patch(adapted_graph, options.patch), options.keep)


def _prepare_parts(graph: Graph, device: PartsDevice, options: CompileOptions, record: _Record) -> Prepared:
    """Prepare a graph for several backends: place first, then apply every pass to each part (decision 8).

    The recorded graphs are the parts joined again; the plan covers the arenas of all devices.
    """
    names, outputs, slack = options.fusions(), list(graph.outputs), slack_of(graph)
    backends = {backend.name: backend for backend in device.backends}
    rules = parse_rules(options.place, list(backends))

    known: _Known = {}  # what placing has tried is mostly what is placed

    def passed(part: Graph, backend: Backend) -> Graph:
        return _stage(part, backend, names, known).graph

    homes = device.homes(options.place)
    placement = record.timed("place", lambda: place(graph, device.backends, rules, passed, homes))
    if options.strict:
        refuse_fallbacks([(fallback.name, fallback.refused or "") for fallback in placement.fallbacks])
    parts = placement.cut.parts
    nodes: list[dict[Node, Node]] = []

    joined: tuple[list[Graph], Graph] | None = None

    def whole(graphs: Sequence[Graph]) -> Graph:
        nonlocal joined
        if joined is None or joined[0] != graphs:  # graphs are equal where they are the same
            graph, nodes[:] = join(graphs, outputs)
            joined = list(graphs), graph
        return joined[1]

    record.keep("place", whole([part.graph for part in parts]))
    placed = [(part.graph, backends[part.backend]) for part in parts]
    ready, log = _apply_passes(placed, options, record, whole, known)
    final = record.snapshots[PASSES[-1].name]

    def planned() -> tuple[ReadyPart, ...]:
        return share_arenas(
            [
                ReadyPart(part.backend, own, _planned(own, device.devices[part.backend], slack))
                for part, own in zip(parts, ready, strict=True)
            ]
        )

    done = record.timed("plan", planned)
    where = backends_of(done, nodes)
    device.settle(final, options.place, placement.states(), where)
    plan = whole_plan(done, nodes)
    return Prepared(final, plan, log, record.snapshots, record.seconds, options, placement, done, where)


@dataclass(frozen=True)
class _Stage:
    """What a pass made of a part, and how long it took."""

    graph: Graph
    log: FusionLog
    seconds: float


_Known: TypeAlias = "dict[tuple[Graph, str], list[_Stage]]"
"""(part, backend) -> what each pass makes of it, one after the other."""


def _stage(
    graph: Graph, backend: Backend, names: Collection[str], known: _Known, number: int = len(PASSES) - 1
) -> _Stage:
    """The part after the pass of this number and those before, worked out unless it is known."""
    stages = known.setdefault((graph, backend.name), [])
    for graph_pass in PASSES[len(stages) : number + 1]:
        start = time.perf_counter()
        after, log = graph_pass.apply(stages[-1].graph if stages else graph, backend, names)
        stages.append(_Stage(after, log, time.perf_counter() - start))
    return stages[number]


def _apply_passes(
    parts: Sequence[tuple[Graph, Backend]],
    options: CompileOptions,
    record: _Record,
    whole: Callable[[Sequence[Graph]], Graph],
    known: _Known,
) -> tuple[list[Graph], FusionLog]:
    """Apply every pass to each part.

    whole: joins the parts after a pass into the recorded graph. known: what passes made of parts before.
    """
    names, log = options.fusions(), FusionLog()
    graphs = [graph for graph, _ in parts]
    with record.verified():
        for number, graph_pass in enumerate(PASSES):
            stages = [_stage(graph, backend, names, known, number) for graph, backend in parts]
            record.seconds[graph_pass.name] = sum(stage.seconds for stage in stages)
            log = sum((stage.log for stage in stages), log)
            graphs = [stage.graph for stage in stages]
            record.keep(graph_pass.name, whole(graphs))
    return graphs, log


def _planned(graph: Graph, device: Device, slack: int) -> Plan:
    return check_plan(graph, plan_memory(graph, device, slack), device)


def slack_of(graph: Graph) -> int:
    """Steps for which a plan of this graph keeps a buffer reserved after its last reader."""
    tokens = [symbol for symbol in graph.symbols().values() if symbol.name == "T"]
    return _DECODE_SLACK if all(symbol.bound == 1 for symbol in tokens) else 0


def compile_graph(
    graph: Graph,
    backend: Backend,
    device: Device,
    weights: Mapping[str, Array],
    progress: Progress = no_progress,
    options: CompileOptions = DEFAULT,
    build_seconds: float = 0.0,
) -> Compiled:
    """Compile a graph for a device; weights: name -> array, in the layout of the graph's dtypes.

    build_seconds: the time that building the graph took; it is added to the pass `build`.
    """
    prepared = prepare(graph, backend, device, options)
    if own := options.arrays():
        weights = {**weights, **own}
    start = time.perf_counter()
    if isinstance(device, PartsDevice) and prepared.placement is not None:
        homes = prepared.placement.states()
        program: Program = lower_parts(device, prepared.parts, homes, weights, progress)
    else:
        program = device.lower(prepared.graph, prepared.plan, weights, progress)
    prepared = prepared.with_seconds(build=build_seconds, lower=time.perf_counter() - start)
    return Compiled(
        **{field.name: getattr(prepared, field.name) for field in fields(Prepared)}, program=program
    )
