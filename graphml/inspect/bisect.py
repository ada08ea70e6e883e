"""Finds the first value of a run that is wrong by itself, not by what it was given.

Each node is computed once more from the run's own inputs of it, so that a difference belongs to the node: on
the other backend, from the run's own graph (is the kernel wrong?), and from the other's graph (does the
rewritten graph mean something else?). Knows observations and graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from graphml.backend import Device
from graphml.engine.compile import CompileOptions, prepare
from graphml.engine.executor import Executor
from graphml.errors import UsageError
from graphml.inspect.forced import GIVEN, Arrays, extract, forced, is_state, run, shown, unit, unquantized
from graphml.inspect.inside import Inside, look_inside
from graphml.inspect.numbers import Difference, difference, tolerance
from graphml.inspect.observe import Observation, Step
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Op
from graphml.ir.ops.layout import maker
from graphml.passes.fusion import Applied

Kind: TypeAlias = Literal["kernel", "rewrite", "plan"]
PLAN_TOLERANCE = 1e-9
END_TO_END = 1e-5  # NMSE above which a value is said to have inherited an error


@dataclass(frozen=True)
class Reading:
    """One value of the run.

    total: against the other's run; here: from the same inputs, on the other backend; meaning: its graph
    against the other's, both there. None where the other lacks the value.
    """

    step: str
    node: Node
    total: Difference | None
    here: Difference
    meaning: Difference | None
    limit: float
    verdict: Literal["ok", "wrong", "inherited"]


@dataclass(frozen=True)
class Finding:
    """A node that is wrong by itself.

    kind: "kernel": the run's backend computes another value than the node means; "rewrite": the node means
    something else than what stood there before; "plan": all values are right as long as they are looked at.
    unit: the nodes that a difference may be owed to, that one last; applied: the fusion that made it. graph,
    other: the unit in the run's graph, and what it is compared with; arrays: what their leaves hold.
    """

    kind: Kind
    step: str
    node: Node
    difference: Difference
    limit: float
    unit: tuple[Node, ...]
    graph: Graph
    other: Graph
    arrays: Arrays
    got: Array
    wanted: Array
    applied: Applied | None = None
    inside: Inside | None = None

    @property
    def made_by(self) -> Op:
        """The op whose kernel computes the value, maybe one of several results, or changes the state."""
        return maker(self.unit[-1] if is_state(self.node) else self.node).op


@dataclass(frozen=True)
class Bisection:
    """Every value as it was read, and what is wrong, first to last."""

    readings: tuple[Reading, ...]
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding | None:
        """Where it begins."""
        return self.findings[0] if self.findings else None


@dataclass(frozen=True)
class Judge:
    """What a run is held against: another backend, or the same with other options.

    limit: an NMSE in place of those of `graphml.inspect.numbers`. own: the run's device, to look inside; None
    for a saved run.
    """

    executor: Executor
    options: CompileOptions
    limit: float | None = None
    own: Device | None = None


def bisect(a: Observation, b: Observation | None, judge: Judge) -> Bisection:
    """Judge a run; b: the other's own run of the same ids, which tells the differences end to end."""
    others = {step.name: step for step in b.steps} if b is not None else {}
    readings: list[Reading] = []
    findings: list[Finding] = []
    for step in a.steps:
        more, wrong = _judge_step(step, others.get(step.name), judge)
        readings += more
        findings += wrong
        if step.unwatched is not None and step.unwatched.nmse > PLAN_TOLERANCE:
            findings.append(_plan_finding(step, step.unwatched))
    if findings and judge.own is not None:
        first = findings[0]
        inside = look_inside(
            first.graph, first.other, first.arrays, first.got, judge.own, judge.executor.device
        )
        findings[0] = replace(first, inside=inside, kind=_kind(first, inside))
    return Bisection(tuple(readings), tuple(findings))


def _kind(finding: Finding, inside: Inside) -> Kind:
    """On one backend a wrong fused kernel looks like a wrong rewriting: the parts tell them apart."""
    return "kernel" if finding.kind == "rewrite" and inside.parts_mean_the_same else finding.kind


def _judge_step(step: Step, other: Step | None, judge: Judge) -> tuple[list[Reading], list[Finding]]:
    bench = _bench(step, judge)
    readings: list[Reading] = []
    findings: list[Finding] = []
    wrong: set[str] = set()
    for name, node in bench.visible.items():
        found = bench.kernel(name), bench.meaning(name)
        worse = next((one for one in reversed(found) if one is not None and one.wrong), None)
        total = _maybe(step.values[name], other.values.get(name)) if other is not None else None
        limit = found[0].limit
        verdict: Literal["ok", "wrong", "inherited"] = "ok"
        if worse is not None:
            verdict = "inherited" if wrong & worse.inner else "wrong"
            wrong.add(name)
            if verdict == "wrong":
                findings.append(_finding(step, node, worse))
        elif total is not None and total.nmse > max(limit, END_TO_END):
            verdict = "inherited"
        meaning = found[1].difference if found[1] is not None else None
        readings.append(Reading(step.name, node, total, found[0].difference, meaning, limit, verdict))
    return readings, findings


@dataclass(frozen=True)
class _Check:
    """A node's unit in two graphs, computed from the same inputs, and how the results differ."""

    kind: Kind
    graph: Graph
    other: Graph
    given: Collection[str]
    name: str
    got: Array
    wanted: Array
    difference: Difference
    limit: float

    @property
    def wrong(self) -> bool:
        return self.difference.nmse > self.limit

    @property
    def inner(self) -> set[str]:
        """The other nodes of the units, whose own errors show here too."""
        nodes = (*unit(self.graph, self.name, self.given), *unit(self.other, self.name, self.given))
        return {node.name for node in nodes} - {self.name}


@dataclass(frozen=True)
class _Bench:
    """A step's graph, without int8 activations too, and the judge's, each computed from the step's values."""

    step: Step
    limit: float | None
    visible: Mapping[str, Node]
    exact: Graph
    plain: Graph
    given: Collection[str]
    common: Collection[str]
    here: Mapping[str, Array]
    meant: Mapping[str, Array]
    plainly: Mapping[str, Array]

    def kernel(self, name: str) -> _Check:
        """What the run's backend made of the node against what the judge's makes of it."""
        graph = self.step.graph
        return self._check("kernel", graph, graph, self.given, name, self.step.values[name], self.here[name])

    def meaning(self, name: str) -> _Check | None:
        """The run's graph against the judge's, both on the judge's backend; None where one lacks the node."""
        got, wanted = self.meant.get(name), self.plainly.get(name)
        if got is None or wanted is None or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            return None
        return self._check("rewrite", self.exact, self.plain, self.common, name, got, wanted)

    def _check(
        self,
        kind: Kind,
        graph: Graph,
        other: Graph,
        given: Collection[str],
        name: str,
        got: Array,
        wanted: Array,
    ) -> _Check:
        nodes = [*unit(graph, name, given), *unit(other, name, given)]
        limit = tolerance(nodes) if self.limit is None else self.limit
        return _Check(kind, graph, other, given, name, got, wanted, difference(got, wanted), limit)


def _bench(step: Step, judge: Judge) -> _Bench:
    plain, device = _graph_of(judge, step), judge.executor.device
    visible = {node.name: node for node in shown(step.graph) if node.name in step.values}
    given = {name for name, node in visible.items() if not is_state(node)}
    here = run(device, forced(step.graph, given), _given(step, given))[0]
    # Both without int8 activations: what is asked is whether the graphs mean the same.
    names = {node.name for node in shown(plain) if not is_state(node)}
    common = given & names
    exact = unquantized(step.graph)
    meant = run(device, forced(exact, common), _given(step, common))[0]
    plainly = run(device, forced(plain, common), _given(step, common))[0]
    return _Bench(step, judge.limit, visible, exact, plain, given, common, here, meant, plainly)


def _graph_of(judge: Judge, step: Step) -> Graph:
    """The judge's own graph of the step, without int8 activations."""
    executor, symbols = judge.executor, step.graph.symbols()
    n_tokens, n_outputs = (symbols[name].bound if name in symbols else 1 for name in ("T", "O"))
    built = executor.build(n_tokens, n_outputs)
    return unquantized(prepare(built, executor.backend, executor.device, judge.options)[0])


def _given(step: Step, names: Collection[str]) -> Arrays:
    values = {GIVEN + name: step.values[name] for name in names}
    return replace(step.arrays, inputs={**step.arrays.inputs, **values})


def _arrays_of(graph: Graph, step: Step) -> Arrays:
    held = {**step.values, **step.arrays.inputs}
    inputs = {name: held[name] for name in graph.leaves("input")}
    weights = {name: step.arrays.weights[name] for name in graph.leaves("weight")}
    states = {name: step.arrays.states[name] for name in graph.leaves("state")}
    return Arrays(inputs, weights, states, step.arrays.dims)


def _maybe(got: Array | None, wanted: Array | None) -> Difference | None:
    if got is None or wanted is None or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return None
    return difference(got, wanted)


def _finding(step: Step, node: Node, check: _Check) -> Finding:
    nodes = tuple(unit(check.graph, check.name, check.given))
    graph = extract(check.graph, check.name, check.given)
    other = graph if check.other is check.graph else extract(check.other, check.name, check.given)
    names = {one.name for one in nodes}
    applied = [one for one in step.applied if one.node in names]
    chosen = next((one for one in applied if one.node == maker(node).name), applied[-1] if applied else None)
    arrays = _arrays_of(Graph((*graph.nodes, *other.nodes), {}), step)
    return Finding(
        check.kind, step.name, node, check.difference, check.limit, nodes, graph, other, arrays,
        check.got, check.wanted, chosen,
    )  # fmt: skip


def _plan_finding(step: Step, found: Difference) -> Finding:
    node = step.graph.outputs["logits"]
    empty = Graph((), {})
    return Finding(
        "plan", step.name, node, found, PLAN_TOLERANCE, (node,), empty, empty, step.arrays,
        step.values["logits"], step.values["logits"],
    )  # fmt: skip


def check_alike(a: Observation, executor: Executor) -> None:
    """A UsageError where a saved run is of another model or keeps keys and values in another dtype."""
    kept = a.facts.get("kv")
    if kept != executor.cache_dtype:
        raise UsageError(f"bisect: the saved run has --kv {kept}; got --kv {executor.cache_dtype}")
    tensors = executor.file.tensors
    for step in a.steps:
        for name, node in step.graph.leaves("weight").items():
            found = tensors.get(name)
            if found is None or (found.dtype, found.shape) != (node.dtype.name, node.shape):
                raise UsageError(
                    f"bisect: the saved run is of {a.facts.get('model')}, whose {name} is {node.type}; "
                    f"{executor.file.path} has {'none' if found is None else f'{found.dtype}{found.shape}'}"
                )
