"""Culprits: the fusions that must be off for a value to be right, found by halves.

Knows how to try a value with some fusions off; nothing of how the fusions match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from graphml.compiler.compile import Prepared
from graphml.inspect.bisect.judging import Bench, with_given
from graphml.inspect.compare.forced import Lowered, forced, is_state, narrowed, shown, unquantized
from graphml.inspect.compare.observe import ObservedStep
from graphml.inspect.compare.tolerances import nmse
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.passes.fusion_log import AppliedFusion

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
