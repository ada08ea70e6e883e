"""Bisection: finds the first value of a run that is wrong by itself, not because of its inputs.

Each node is computed again from its inputs in the run, so that a difference is the node's own: on the other
backend, from the run's own graph (is the kernel wrong?), and from the other's graph (does the rewritten graph
compute something else?). Some steps run without the fusions that convert to int8, whose rounding hides
errors. Knows executors, observations and graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from graphml.compiler.compile import Prepared, prepare
from graphml.compiler.multi_device import PartsDevice
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.inspect.bisect.coverage import Coverage, coverage
from graphml.inspect.bisect.culprits import Rewritten, Trials, built_names, probes, suspects
from graphml.inspect.bisect.inside import Inside, look_inside
from graphml.inspect.bisect.judging import Bench, Benches, Check, Judge, Judged, Kind, read
from graphml.inspect.compare.copies import Copied
from graphml.inspect.compare.forced import LeafArrays, extract, is_state, unit
from graphml.inspect.compare.observe import Observation, ObservedStep, observe
from graphml.inspect.compare.route import FEW, Leg, usual, wide
from graphml.inspect.compare.tolerances import ArrayDifference, difference
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Op
from graphml.ir.ops.layout import maker
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import Symbol
from graphml.passes.fusion import fusions
from graphml.passes.fusion_log import AppliedFusion
from graphml.runtime.programs.executor import Executor

PLAN_TOLERANCE = 1e-9
END_TO_END = 1e-5  # NMSE above which a value counts as having an inherited error


@dataclass(frozen=True)
class RunValue:
    """One value of the run.

    total: against the other run; here: from the same inputs, on the other backend; meaning: its graph against
    the other's, both on the other backend. None if the other run has no such value.
    copied: set for a value after a copy to another device; here is then against the value before it.
    """

    step: str
    node: Node
    total: ArrayDifference | None
    here: ArrayDifference
    meaning: ArrayDifference | None
    limit: float
    verdict: Literal["ok", "wrong", "inherited"]
    copied: Copied | None = None

    @property
    def op(self) -> str:
        """The name of the node's op; of a copy between devices, `copy`."""
        return self.node.op.name if self.copied is None else "copy"


@dataclass(frozen=True)
class Finding:
    """A node that is wrong by itself.

    kind: "kernel": the kernel of the run's backend is wrong; "rewrite": the node computes something else than
    the nodes that it replaced; "copy": the value on a device is another than the one that was copied to it;
    "plan": all values are right only if they are kept. backend: where the node is; copied: of a copy, which.
    unit: the nodes that may cause a difference, that one last; applied: the fusion that made it. suspects:
    the fusions that covered its nodes; culprits: those that must be off for it to be right; None: not looked
    for. graph, other: the unit in the run's graph, and in the graph that it is compared with; arrays: the
    values of their leaves. token, position: of the first wrong row in the step and in its sequence; None for
    a value without a row a token.
    """

    kind: Kind
    step: str
    node: Node
    difference: ArrayDifference
    limit: float
    unit: tuple[Node, ...]
    graph: Graph
    other: Graph
    arrays: LeafArrays
    got: Array
    wanted: Array
    applied: AppliedFusion | None = None
    inside: Inside | None = None
    token: int | None = None
    position: int | None = None
    backend: str = ""
    copied: Copied | None = None
    suspects: tuple[str, ...] = ()
    culprits: tuple[str, ...] | None = None

    @property
    def op(self) -> str:
        """The name of the op to blame; `copy` for a copy between devices."""
        return self.made_by.name if self.copied is None else "copy"

    @property
    def made_by(self) -> Op:
        """The op whose kernel computes the value (perhaps as one of several results) or changes the state."""
        return maker(self.unit[-1] if is_state(self.node) else self.node).op


@dataclass(frozen=True)
class Bisection:
    """The readings of all values, the findings in order, and the coverage."""

    readings: tuple[RunValue, ...]
    findings: tuple[Finding, ...]
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def first(self) -> Finding | None:
        """The first finding."""
        return self.findings[0] if self.findings else None


def bisect(
    a: Observation,
    b: Observation | None,
    judge: Judge,
    apart: Observation | None = None,
    rewritten: Rewritten | None = None,
) -> Bisection:
    """Judge a run; b: the other side's run of the same ids, for the differences end to end.

    apart: the run repeated without the fusions that make int8, whose rounding hides small errors. rewritten:
    makes the run's graphs without some fusions, to find those to blame for the first wrong rewriting.
    """
    others = {step.name: step for step in b.steps} if b is not None else {}
    benches = Benches(judge, a.facts.get("backend") != judge.executor.backend.name)
    readings: list[RunValue] = []
    findings: list[Finding] = []
    in_use: list[Finding] = []
    steps = [*a.steps, *(() if apart is None else apart.steps)]
    tried = probes(steps, benches)
    for step in [*steps, *tried]:
        more, wrong = _judge_step(step, others.get(step.name), benches)
        readings += more
        findings += wrong
        for name, error in (step.unwatched or {}).items():
            if error.nmse > PLAN_TOLERANCE:
                in_use.append(_plan_finding(step, name, error))
                break
    findings += in_use  # a wrong kernel is the better explanation
    if findings and judge.own is not None:
        first = findings[0]
        own = judge.own
        if isinstance(own, PartsDevice):
            own = own.devices.get(first.backend, own)
        inside = look_inside(first.graph, first.other, first.arrays, first.got, own, judge.executor.device)
        findings[0] = replace(first, inside=inside, kind=_kind(first, inside))
    if findings and findings[0].kind == "rewrite" and rewritten is not None:
        step = next(candidate for candidate in [*steps, *tried] if candidate.name == findings[0].step)
        findings[0] = _with_culprits(findings[0], step, benches.of(step), rewritten)
    seen = coverage(a, steps, bool(tried), judge)
    return Bisection(tuple(readings), tuple(findings), seen)


def _kind(finding: Finding, inside: Inside) -> Kind:
    """On one backend a wrong fused kernel looks like a wrong rewriting: the parts distinguish them."""
    return "kernel" if finding.kind == "rewrite" and inside.parts_mean_the_same else finding.kind


def _with_culprits(first: Finding, step: ObservedStep, bench: Bench, rewritten: Rewritten) -> Finding:
    trials = Trials(step, bench, rewritten, first.node.name, first.wanted, first.limit)
    names = built_names(first.graph, first.other)
    culprits = trials.culprits(step.applied, names)
    by_them = [
        application
        for application in step.applied
        if application.fusion in culprits and not names.isdisjoint(application.covered)
    ]
    return replace(first, culprits=culprits, applied=by_them[0] if by_them else first.applied)


def _judge_step(
    step: ObservedStep, other: ObservedStep | None, benches: Benches
) -> tuple[list[RunValue], list[Finding]]:
    judged = Judged(step, benches.of(step))
    readings: list[RunValue] = []
    findings: list[Finding] = []
    wrong: set[str] = set()
    for name, node in judged.visible.items():
        checks = judged.kernel(name), judged.meaning(name)
        worse = next((check for check in reversed(checks) if check is not None and check.wrong), None)
        total = _maybe(step.values[name], other.values.get(name)) if other is not None else None
        limit = checks[0].limit
        verdict: Literal["ok", "wrong", "inherited"] = "ok"
        if worse is not None:
            verdict = "inherited" if wrong & worse.inner else "wrong"
            wrong.add(name)
            if verdict == "wrong":
                findings.append(_finding(step, node, worse))
        elif total is not None and total.nmse > max(limit, END_TO_END):
            verdict = "inherited"
        meaning = checks[1].difference if checks[1] is not None else None
        copied = step.copies.get(name)
        readings.append(
            RunValue(step.name, node, total, checks[0].difference, meaning, limit, verdict, copied)
        )
    return readings, findings


def _arrays_of(graph: Graph, step: ObservedStep) -> LeafArrays:
    inputs = {
        name: step.arrays.inputs[name] if name in step.arrays.inputs else read(step, name)
        for name in graph.leaves("input")
    }
    weights = {name: step.arrays.weights[name] for name in graph.leaves("weight")}
    states = {name: step.arrays.states[name] for name in graph.leaves("state")}
    return LeafArrays(inputs, weights, states, step.arrays.dims)


def _maybe(got: Array | None, wanted: Array | None) -> ArrayDifference | None:
    if got is None or wanted is None or (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return None
    return difference(got, wanted)


def _finding(step: ObservedStep, node: Node, check: Check) -> Finding:
    nodes = tuple(unit(check.graph, check.name, check.given))
    graph = extract(check.graph, check.name, check.given)
    other = graph if check.other is check.graph else extract(check.other, check.name, check.given)
    names = {member.name for member in nodes}
    applied = [application for application in step.applied if application.node in names]
    its_own = [application for application in applied if application.node == maker(node).name]
    chosen = next(reversed(its_own or applied), None)  # the last made the node of what those before it made
    arrays = _arrays_of(Graph((*graph.nodes, *other.nodes), {}), step)
    copied = step.copies.get(node.name)
    return Finding(
        "copy" if copied is not None else check.kind, step.name, node, check.difference, check.limit, nodes,
        graph, other, arrays, check.got, check.wanted, chosen, None, *_first_wrong_row(step, node, check),
        step.backends.get(nodes[-1].name) or step.backends.get(node.name, ""), copied,
        tuple(suspects(step.applied, built_names(graph, other))),
    )  # fmt: skip


def _first_wrong_row(step: ObservedStep, node: Node, check: Check) -> tuple[int | None, int | None]:
    """Number and position of the first token whose row is wrong; the limit is that of all rows together."""
    positions = step.arrays.inputs.get("positions")
    rows = node.shape[0] if node.shape else None
    if positions is None or not isinstance(rows, Symbol) or rows.name != "T" or not len(check.got):
        return None, None
    got, wanted = (
        np.asarray(array, np.float64).reshape(len(array), -1) for array in (check.got, check.wanted)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        errors, size = ((got - wanted) ** 2).sum(axis=1), (wanted**2).sum(axis=1).mean()
        wrong = np.flatnonzero(~(errors <= check.limit * size) & ~(got == wanted).all(axis=1))
    if not len(wrong) or len(positions) != len(got):
        return None, None
    return int(wrong[0]), int(positions[wrong[0]])


def _plan_finding(step: ObservedStep, name: str, error: ArrayDifference) -> Finding:
    node = step.graph.outputs["logits"] if name == "logits" else step.graph.leaves("state")[name]
    empty, nothing = Graph((), {}), np.empty(0, np.float32)
    return Finding(
        "plan", step.name, node, error, PLAN_TOLERANCE, (node,), empty, empty, step.arrays, nothing, nothing
    )


def check_alike(a: Observation, executor: Executor) -> None:
    """Raise a UsageError if a saved run is of another model or of another dtype of keys and values."""
    kept = a.facts.get("kv")
    if kept != executor.cache_dtype:
        raise UsageError(f"bisect: the saved run has kv {kept}; got kv {executor.cache_dtype} (--kv)")
    tensors = executor.file.tensors
    for step in a.steps:
        for name, node in step.graph.leaves("weight").items():
            tensor = tensors.get(name)
            if tensor is None or (tensor.dtype, tensor.shape) != (node.dtype.name, node.shape):
                raise UsageError(
                    f"bisect: the saved run is of {a.facts.get('model')}, whose {name} is {node.type}; "
                    f"{executor.file.path} has "
                    f"{'none' if tensor is None else f'{tensor.dtype}{tensor.shape}'}"
                )


BEFORE = " before int8"  # suffix of the names of the steps of that round


def examine(
    executor: Executor, ids: Sequence[int], options: CompileOptions, judge: Judge
) -> tuple[Observation, Observation, Bisection]:
    """Run A over all boundaries and the judge over the usual steps; returns the bisection.

    The rounding of int8 hides errors of nodes fused with the conversion; so some steps run without fusing it.
    """
    run = observe(executor, ids, options, wide(executor, len(ids)))
    other = observe(judge.executor, ids, judge.options, usual(min(len(ids), FEW + 1)), in_use=False)
    apart, rewritten = _before_int8(run, executor, options), _rewritten(executor, options)
    return run, other, bisect(run, other, judge, apart, rewritten)


def _before_int8(run: Observation, executor: Executor, options: CompileOptions) -> Observation | None:
    """A few steps without the fusions that convert to int8; None if the run has none."""
    names = {f.name for f in fusions().values() if any(quantize in ops for ops in f.ops())}
    used = {application.fusion for step in run.steps for application in step.applied} & names
    if not used:
        return None
    legs = [Leg(leg.name + BEFORE, leg.counts, whole=False) for leg in usual(min(len(run.ids), FEW))]
    return observe(executor, run.ids, options.without(used), legs, in_use=False)


def _rewritten(executor: Executor, options: CompileOptions) -> Rewritten:
    """What the run's passes make of a graph without some fusions."""

    def made(built: Graph, fuse: str, off: Collection[str]) -> Prepared:
        chosen = CompileOptions(fuse, place=options.place).without(off)
        return prepare(built, executor.backend, executor.device, chosen)

    return made
