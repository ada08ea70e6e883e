"""Culprits: the fusions that must be off for a value to be right, found by halves.

Probes are steps with extreme values, on which an eps, a clamp or a cap that a kernel ignores is detected.

Knows how to try a value with some fusions off; nothing of how the fusions match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from graphml.compiler.compile import Prepared
from graphml.inspect.bisect.judging import Bench, Benches, with_given
from graphml.inspect.compare.forced import Lowered, forced, is_state, narrowed, shown, unit, unquantized
from graphml.inspect.compare.observe import ObservedStep
from graphml.inspect.compare.tolerances import nmse
from graphml.ir.fused import decomposition
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array, number
from graphml.passes.fusion_log import AppliedFusion

LARGE = 100.0  # root mean square of a value before a clamp or cap
NORMS = ("rms_norm", "layer_norm", "l2_norm")


@dataclass(frozen=True)
class Scaling:
    """The scaling of a value. op: the norm before which its rows come near zero; "": it becomes large."""

    op: str = ""
    eps: float = 0.0

    def of(self, values: Array) -> Array:
        """The same values, larger or smaller."""
        wide = values.astype(np.float64)
        if not self.op:
            size = np.sqrt(np.mean(wide * wide, keepdims=True))
            return _times(values, np.maximum(LARGE / np.where(size > 0, size, LARGE), 1.0))
        if self.op == "layer_norm":
            wide = wide - np.mean(wide, axis=-1, keepdims=True)
        size = np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True))
        wanted = np.sqrt(self.eps) if self.op != "l2_norm" else self.eps / (2 * values.shape[-1] ** 0.5)
        return _times(values, np.divide(wanted, size, out=np.ones_like(size), where=size > 0))


def _times(values: Array, factor: Array) -> Array:
    result: Array = (values * factor).astype(values.dtype)
    return result


def probes(steps: Sequence[ObservedStep], benches: Benches) -> list[ObservedStep]:
    """One more step for each graph of one sequence, after its first step; none for a saved run."""
    firsts: dict[int, ObservedStep] = {}
    for step in steps:
        if step.arrays.dims.get("S", 1) == 1:
            firsts.setdefault(id(step.graph), step)
    probed = [_probe(step, benches.of(step)) for step in firsts.values()]
    return [step for step in probed if step is not None]


def _probe(step: ObservedStep, bench: Bench) -> ObservedStep | None:
    scaled = _scaled(bench)
    own = bench.judge.own
    if own is None or not scaled:
        return None
    given_values = {name: step.values[name] for name in bench.given}
    given_values |= {name: scaling.of(given_values[name]) for name, scaling in scaled.items()}
    names = [name for name in bench.ends if _asks(bench, name)]
    changed = replace(
        step, name=f"{step.name} with extreme values", given=given_values, whole=False, unwatched=None
    )
    values = bench.computed(bench.graph, names, bench.given, changed, own)
    return replace(changed, values=values)


def _scaled(bench: Bench) -> dict[str, Scaling]:
    """The values to scale; near zero if both are needed."""
    scalings: dict[str, Scaling] = {}
    for node in bench.graph.nodes:
        scaling = _asked_by(node)
        if scaling is not None:
            for name in _sources(bench, node):
                if name not in scalings or scaling.op:
                    scalings[name] = scaling
    return scalings


def _asked_by(node: Node) -> Scaling | None:
    """The scaling of a node's inputs that makes all of its attributes matter."""
    plain: Iterable[Node] = (node,)
    if node.op.decompose is not None:
        plain = decomposition(node.op, [source.type for source in node.inputs], node.attributes).nodes
    holds = False
    for part in plain:
        if part.op.name in NORMS:
            return Scaling(part.op.name, number(part.attributes, "eps"))
        holds |= part.op.name in ("clamp", "tanh")
        holds |= "softcap" in part.attributes and number(part.attributes, "softcap") > 0
    return Scaling() if holds else None


def _sources(bench: Bench, node: Node) -> set[str]:
    """The given values of floats that a node is computed from."""
    sources: set[str] = set()
    stack = list(node.inputs)
    while stack:
        source = stack.pop()
        if source.name in bench.given:
            if source.dtype.name == "f32":
                sources.add(source.name)
        elif source.op.family != "leaf" and not is_state(source):
            stack.extend(source.inputs)
    return sources


def _asks(bench: Bench, name: str) -> bool:
    """Whether a norm, clamp or cap is judged with a value; other ops may round small values differently."""
    return any(_asked_by(node) is not None for node in unit(bench.graph, name, bench.given))


Rewritten: TypeAlias = Callable[[Graph, str, Collection[str]], Prepared]
"""From a graph as built, the run's switches and fusions to turn off to the graph that the run would have."""


def search(names: Sequence[str], right: Callable[[Collection[str]], bool]) -> tuple[str, ...]:
    """The fusions that must be off; none if it is still wrong with all of these off.

    names: in the order in which they are applied, since a later fusion may take what an earlier one made: the
    last one is found whose absence, with that of those after it, is enough. right: whether it is right
    without some of them; called log2(n) + 2 times for one culprit. What is found was tried: it is right with
    only these off. They are several where another wrong fusion takes the place of the first.
    """
    every = tuple(dict.fromkeys(names))
    known: dict[frozenset[str], bool] = {}

    def tried(off: Sequence[str]) -> bool:
        key = frozenset(off)
        if key not in known:
            known[key] = right(key)
        return known[key]

    if not every or not tried(every):
        return ()
    enough, few = len(every), 0  # so many of the last: right without them; wrong without them
    while enough - few > 1:
        half = (enough + few) // 2
        enough, few = (half, few) if tried(every[-half:]) else (enough, half)
    needed = every[-enough:]
    if tried(needed[:1]):
        return needed[:1]
    for name in reversed(needed):
        rest = tuple(other for other in needed if other != name)
        if rest and tried(rest):
            needed = rest
    return needed


def suspects(applied: Sequence[AppliedFusion], names: Collection[str]) -> list[str]:
    """The fusions that covered nodes, as built, of these names; in the order in which they were applied."""
    covering = (
        application.fusion for application in applied if not set(application.covered).isdisjoint(names)
    )
    return list(dict.fromkeys(covering))


def built_names(*graphs: Graph) -> frozenset[str]:
    """The names, as built, of the nodes that graphs compute."""
    nodes = [node for graph in graphs for node in graph.nodes if node.inputs]
    return frozenset(name for node in nodes for name in (node.name, *node.origin))


class Trials:
    """Computes one value of a step as the run would without some fusions, from the step's own values.

    Each trial runs the passes on the whole graph, so that other fusions match as they would in a run, but
    lowers no more than the value needs. wanted: what is right; limit: the NMSE that is allowed.
    """

    def __init__(
        self, step: ObservedStep, bench: Bench, rewritten: Rewritten, name: str, wanted: Array, limit: float
    ) -> None:
        self._step, self._bench, self._rewritten = step, bench, rewritten
        self._name, self._wanted, self._limit = name, wanted, limit
        self._prepared: dict[frozenset[str], Prepared] = {}

    def culprits(self, applied: Sequence[AppliedFusion], names: Collection[str]) -> tuple[str, ...]:
        """The fusions to blame among those that cover nodes of these names. applied: those of the run."""
        known = suspects(applied, names)
        while known:
            culprits = search(known, self._right)
            others = suspects(self._without(known).fusions.applied, names)
            matching = [name for name in others if name not in known]
            if culprits or not matching:
                return culprits
            known += matching  # with those off others match, and may be wrong too
        return ()

    def _without(self, off: Collection[str]) -> Prepared:
        key = frozenset(off)
        if key not in self._prepared:
            self._prepared[key] = self._rewritten(self._step.plain, self._step.fuse, key)
        return self._prepared[key]

    def _right(self, off: Collection[str]) -> bool:
        graph = unquantized(self._without(off).graph)
        nodes = {node.name: node for node in shown(graph)}
        given_names = {name for name in self._bench.common if name in nodes and not is_state(nodes[name])}
        if self._name not in nodes:
            return False
        parts = narrowed(forced(graph, given_names), {self._name})
        program = Lowered(self._bench.judge.executor.device, parts, self._bench.weights)
        got = program.run(with_given(self._step, given_names))[0][self._name]
        alike = (got.shape, got.dtype) == (self._wanted.shape, self._wanted.dtype)
        return alike and nmse(got, self._wanted) <= self._limit
