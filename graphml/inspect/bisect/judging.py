"""Judging: computes a step's values again on another backend, from the step's own inputs, and compares.

Programs are made once for each graph, however many steps it ran. Knows observations and graphs; nothing of
how a difference is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from graphml.backend import Device
from graphml.compiler.compile import prepare
from graphml.compiler.options import CompileOptions
from graphml.inspect.compare.copies import Copied, without_copies
from graphml.inspect.compare.forced import (
    GIVEN,
    LeafArrays,
    Lowered,
    changer,
    forced,
    is_state,
    narrowed,
    shown,
    unit,
    unquantized,
)
from graphml.inspect.compare.observe import ObservedStep
from graphml.inspect.compare.tolerances import (
    MOST_BY_ROUNDING,
    ROUNDING_TIMES,
    ROUNDING_TRIES,
    ArrayDifference,
    difference,
    makes_int8,
    moved,
    nmse,
    tolerance,
)
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.layout import maker
from graphml.passes.expand import expand
from graphml.runtime.programs.executor import Executor

Kind: TypeAlias = Literal["kernel", "rewrite", "copy", "plan"]


@dataclass(frozen=True)
class Judge:
    """The other side of the comparison: another backend, or the same with other options.

    limit: an NMSE in place of those of `compare.tolerances`. own: the run's device, to look inside
    and to try other values; None for a saved run.
    """

    executor: Executor
    options: CompileOptions
    limit: float | None = None
    own: Device | None = None


@dataclass(frozen=True)
class Check:
    """A node's unit in two graphs, computed from the same inputs, and how the results differ."""

    kind: Kind
    graph: Graph
    other: Graph
    given: Collection[str]
    name: str
    got: Array
    wanted: Array
    difference: ArrayDifference
    limit: float

    @property
    def wrong(self) -> bool:
        """Whether they differ by more than the tolerance."""
        return self.difference.nmse > self.limit

    @property
    def inner(self) -> set[str]:
        """The other nodes of the units, whose errors affect the results too."""
        nodes = (*unit(self.graph, self.name, self.given), *unit(self.other, self.name, self.given))
        return {node.name for node in nodes} - {self.name}


@dataclass
class Bench:
    """A run's graph and the judge's of the same step, each also without int8 activations, and their programs.

    plain: the judge's. by_meaning: fused ops are replaced by their decompositions; otherwise their kernels
    are tested too, which is the only test if the run and the judge have one backend.
    """

    graph: Graph
    judge: Judge
    weights: Mapping[str, Array]
    plain: Graph
    by_meaning: bool = True
    copies: Mapping[str, Copied] = field(default_factory=dict)
    _programs: dict[tuple[int, frozenset[str]], Lowered] = field(default_factory=dict)

    @cached_property
    def exact(self) -> Graph:
        """The run's graph without copies and int8 activations, to test whether the graphs are equivalent."""
        return unquantized(without_copies(self.graph, self.copies))

    @cached_property
    def visible(self) -> dict[str, Node]:
        """The nodes that can be shown, by name."""
        return {node.name: node for node in shown(self.graph)}

    @cached_property
    def given(self) -> frozenset[str]:
        """Values that others are computed from."""
        return frozenset(name for name, node in self.visible.items() if not is_state(node))

    @cached_property
    def common(self) -> frozenset[str]:
        """The given values that the judge's graph has too."""
        return self.given & {node.name for node in shown(self.plain) if not is_state(node)}

    @cached_property
    def kept(self) -> frozenset[str]:
        """Values that both graphs compute alike from given values."""
        exact, plain = self.exact, self.plain
        if self.by_meaning:
            exact, plain = expand(exact), expand(plain)
        ours, theirs = ({node.name: node for node in shown(graph)} for graph in (exact, plain))

        def alike(name: str) -> bool:
            return self._made(exact, ours[name]) == self._made(plain, theirs[name])

        return frozenset(name for name in self._of_both() & set(ours) & set(theirs) if alike(name))

    @cached_property
    def changed(self) -> frozenset[str]:
        """The other values of both."""
        return self._of_both() - self.kept

    def _of_both(self) -> frozenset[str]:
        plain = {node.name: node.type for node in shown(self.plain)}
        return frozenset(node.name for node in shown(self.exact) if plain.get(node.name) == node.type)

    def _made(self, graph: Graph, node: Node) -> object:
        """The expression of a value over leaves and given values, without the names between."""
        return written(changer(graph, node), self.common)

    @cached_property
    def ends(self) -> frozenset[str]:
        """The first two and the last of the values that are computed alike."""
        kinds: dict[object, list[str]] = {}
        for name, node in self.visible.items():
            producer = maker(node)
            said = tuple(sorted(producer.attributes.items(), key=lambda item: item[0]))
            kind = producer.op, said, node.type, tuple(source.type for source in producer.inputs)
            kinds.setdefault(kind, []).append(name)
        return frozenset(name for names in kinds.values() for name in {*names[:2], names[-1]})

    def computed(self, graph: Graph, names: Iterable[str], given_names: Collection[str], step: ObservedStep,
                 device: Device | None = None) -> Mapping[str, Array]:  # fmt: skip
        """Values of a graph, each from the step's given values; device: used in place of the judge's."""
        wanted = frozenset(names)
        key = id(graph) if device is None else -id(graph), wanted
        if key not in self._programs:
            parts = narrowed(forced(graph, given_names), wanted)
            self._programs[key] = Lowered(device or self.judge.executor.device, parts, self.weights)
        return self._programs[key].run(with_given(step, given_names))[0]


class Judged:
    """A step's values as the judge computes them, and the checks on them."""

    def __init__(self, step: ObservedStep, bench: Bench) -> None:
        self.step, self._bench = step, bench
        named = bench.visible if step.whole else bench.ends
        self.visible = {n: node for n, node in bench.visible.items() if n in named and n in step.values}
        self._here = bench.computed(bench.graph, self.visible, bench.given, step)
        if step.given:  # a value that is not finite there is no evidence
            self.visible = {n: node for n, node in self.visible.items() if np.isfinite(self._here[n]).all()}
        changed = bench.changed & set(self.visible)
        self._meant = bench.computed(bench.exact, changed, bench.common, step)
        self._plainly = bench.computed(bench.plain, changed, bench.common, step)

    def kernel(self, name: str) -> Check:
        """The node's value in the run against its value on the judge's backend."""
        graph = self._bench.graph
        got, wanted = self.step.values[name], self._here[name]
        check = self._check("kernel", graph, graph, self._bench.given, name, got, wanted)
        if not check.wrong or check.difference.nmse > MOST_BY_ROUNDING or self._bench.judge.limit is not None:
            return check
        if not any(map(makes_int8, unit(graph, name, self._bench.given))):
            return check
        return replace(check, limit=max(check.limit, ROUNDING_TIMES * self._by_rounding(name)))

    def _by_rounding(self, name: str) -> float:
        """The largest change of a value if its inputs change by no more than the rounding of scales."""
        names, worst = self._bench.given, 0.0
        for seed in range(ROUNDING_TRIES):
            generator = np.random.default_rng(seed)
            step = replace(
                self.step, given={source: moved(read(self.step, source), generator) for source in names}
            )
            again = self._bench.computed(self._bench.graph, [name], names, step)[name]
            worst = max(worst, nmse(again, self._here[name]))
        return worst

    def meaning(self, name: str) -> Check | None:
        """The run's graph against the judge's, both on the judge's backend; None if one lacks the node."""
        bench = self._bench
        if name in bench.kept:
            got = wanted = self._here[name]
        elif name in bench.changed:
            got, wanted = self._meant[name], self._plainly[name]
        else:
            return None
        return self._check("rewrite", bench.exact, bench.plain, bench.common, name, got, wanted)

    def _check(
        self,
        kind: Kind,
        graph: Graph,
        other: Graph,
        given_names: Collection[str],
        name: str,
        got: Array,
        wanted: Array,
    ) -> Check:
        nodes = [*unit(graph, name, given_names), *unit(other, name, given_names)]
        own = self._bench.judge.limit
        limit = tolerance(nodes, wanted.size) if own is None else own
        return Check(kind, graph, other, given_names, name, got, wanted, difference(got, wanted), limit)


class Benches:
    """A bench for each graph that a run's steps have."""

    def __init__(self, judge: Judge, by_meaning: bool) -> None:
        self._judge, self._by_meaning = judge, by_meaning
        self._known: dict[int, Bench] = {}
        self._plain: dict[tuple[int, ...], Graph] = {}

    def of(self, step: ObservedStep) -> Bench:
        """The bench of a step's graph."""
        bench = self._known.get(id(step.graph))
        if bench is None:
            plain = self._plain_of(step.graph)
            bench = Bench(step.graph, self._judge, step.arrays.weights, plain, self._by_meaning, step.copies)
            self._known[id(step.graph)] = bench
        return bench

    def _plain_of(self, graph: Graph) -> Graph:
        """The judge's own graph of the same bounds, without int8 activations."""
        executor, symbols = self._judge.executor, graph.symbols()
        tokens, outputs, sequences = (symbols[n].bound if n in symbols else 1 for n in ("T", "O", "S"))
        bounds = tokens, outputs, sequences
        if bounds not in self._plain:
            built = executor.build(tokens, outputs, sequences)
            prepared = prepare(built, executor.backend, executor.device, self._judge.options).graph
            self._plain[bounds] = unquantized(prepared)
        return self._plain[bounds]


def written(node: Node, given_names: Collection[str]) -> object:
    """A node and its inputs, back to leaves and given values, as a value that can be compared."""
    sources: list[object] = []
    for source in node.inputs:
        if source.op.family == "leaf" or (source.name in given_names and not is_state(source)):
            sources.append((source.op.name, source.name) if source.op.family == "leaf" else source.name)
        else:
            sources.append(written(source, given_names))
    if node.op.commutative:
        sources[:2] = sorted(sources[:2], key=repr)
    return node.op.name, node.type, tuple(sorted(node.attributes.items())), tuple(sources)


def read(step: ObservedStep, name: str) -> Array:
    """The value that readers of a node read in a step."""
    return step.given[name] if name in step.given else step.values[name]


def with_given(step: ObservedStep, names: Collection[str]) -> LeafArrays:
    """A step's leaves, and the given values as the inputs of a forced graph."""
    values = {GIVEN + name: read(step, name) for name in names}
    return replace(step.arrays, inputs={**step.arrays.inputs, **values})
