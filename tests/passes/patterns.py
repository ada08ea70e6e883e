"""Graphs of the patterns of fusions, for tests: every fusion meets each of its patterns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, cycle, product

from graphml.errors import GraphError
from graphml.ir.fused import as_outputs
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Pattern, Sample, Several, Term, Type
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.shape import Symbol
from graphml.passes.fusion import fuse, fusions
from graphml.passes.fusion_log import FusionLog
from graphml.passes.rewrite import find, rebuild, root_of
from tests.graphs import Recipe

FUSIONS = fusions()
LINEAR, LINEAR_ATTRIBUTES = FUSIONS["dequant_mul_mat"].replace, {"bias": False, "residual": False}
FUSED = {fusion.replace for fusion in FUSIONS.values()}


def leaves_of(g: Builder, op: Op, sample: Sample, names: tuple[str, ...]) -> dict[str, Node]:
    return {
        name: (g.state if op.writes == i else g.input if _grows(kind) else g.weight)(
            name, kind.dtype, kind.shape
        )
        for i, (name, kind) in enumerate(zip(names, sample.inputs, strict=True))
    }


def _grows(kind: Type) -> bool:
    return bool(kind.shape) and isinstance(kind.shape[0], Symbol)


def inner(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op not in LEAVES]


def subsets(attributes: Mapping[str, Attribute]) -> Iterator[dict[str, Attribute]]:
    items = list(attributes.items())
    every = chain.from_iterable(combinations(items, n) for n in range(len(items), -1, -1))
    return (dict(chosen) for chosen in every)


Attributes = Iterator[dict[str, Attribute]]


def build_pattern(
    g: Builder, pattern: Pattern, leaves: Mapping[str, Node], chosen: Attributes
) -> tuple[Node, ...]:
    """The nodes of a pattern's results; equal terms are one node."""
    if isinstance(pattern, Several):
        return tuple(build_term(g, pattern.term, alone, chosen, {}) for alone in one_by_one(pattern, leaves))
    made: dict[Term, Node] = {}
    terms = pattern if isinstance(pattern, tuple) else (pattern,)
    build_term(g, terms[-1], leaves, chosen, made)
    return tuple(made[term] for term in terms)


def one_by_one(pattern: Several, leaves: Mapping[str, Node]) -> list[dict[str, Node]]:
    """The variables of each of several, of leaves called `weight`, `weight_1`, ..."""
    shared = {pattern.sharing: leaves[pattern.sharing]}
    own = [name for name in leaves if "_" not in name and name not in shared]
    count = (len(leaves) - 1) // len(own)
    return [shared | {name: leaves[name if i == 0 else f"{name}_{i}"] for name in own} for i in range(count)]


def build_term(
    g: Builder, term: Term, leaves: Mapping[str, Node], chosen: Attributes, made: dict[Term, Node]
) -> Node:
    """The nodes of a term, each with the next chosen attributes that its op knows and those it must have."""
    if term in made:
        return made[term]
    operands = [
        leaves[part] if isinstance(part, str) else build_term(g, part, leaves, chosen, made)
        for part in term.arguments
    ]
    attributes = {name: value for name, value in next(chosen).items() if name in term.op.attributes}
    if "from_dtype" in term.op.attributes:
        attributes["from_dtype"] = operands[0].dtype.name
    if term.op is LINEAR and len(operands) == 3:
        attributes["bias"] = True
    made[term] = g.call(term.op, *operands, **{**attributes, **dict(term.required)})
    return made[term]


def n_nodes(pattern: Pattern) -> int:
    """How many nodes `build_pattern` asks for attributes of, and more."""
    term = root_of(pattern)
    return 1 + sum(n_nodes(part) for part in term.arguments if isinstance(part, Term))


def names_of(pattern: Pattern, names: tuple[str, ...], sample: Sample) -> tuple[str, ...] | None:
    """The variables of a pattern, one for each operand of a sample; None where they do not fit."""
    if isinstance(pattern, Several):
        own = [name for name in names if name != pattern.sharing]
        count, rest = divmod(len(sample.inputs) - 1, len(own))
        if rest or count < 2 or bool(sample.attributes.get("bias")) != ("bias" in own):
            return None
        several = [name if i == 0 else f"{name}_{i}" for name in own for i in range(count)]
        return (pattern.sharing, *several)
    return names if len(names) == len(sample.inputs) else None


def candidates(name: str, i: int) -> Iterator[Recipe]:
    """Graphs of a fusion's pattern, for every sample and every way to share out the sample's attributes."""
    fusion = FUSIONS[name]
    pattern, variables = fusion.patterns()[i]
    for sample in fusion.replace.samples():
        names = names_of(pattern, variables, sample)
        if names is None:
            continue
        fills = {variable: (sample, j) for j, variable in enumerate(names)}
        for chosen in product(list(subsets(shares(sample))), repeat=n_nodes(pattern)):
            g = Builder()
            leaves = leaves_of(g, fusion.replace, sample, names)
            try:
                with g.scope("layers.0"):
                    results = build_pattern(g, pattern, leaves, cycle(chosen))
            except GraphError:  # these attributes do not fit these operands
                continue
            yield Recipe(g.finish(**as_outputs(results, len(results) > 1)), fills)


def shares(sample: Sample) -> dict[str, Attribute]:
    """What nodes of a pattern may have of a sample's attributes, under the names that plain ops give them."""
    known = {name: value for name, value in sample.attributes.items() if name in PATTERN_ATTRIBUTES}
    if "limit" in sample.attributes:  # of `softcap`, whose two scales have a factor each
        return {"factor": sample.attributes["factor"]}
    return known


PATTERN_ATTRIBUTES = {
    name
    for fusion in FUSIONS.values()
    for ops in fusion.ops()
    for op in ops
    for name in op.attributes
    if name not in ("residual",)
}


def pattern_graph(name: str, i: int) -> Recipe:
    """A graph of a fusion's pattern that the fusion accepts."""
    for recipe in chain(found_in_samples(name, i), candidates(name, i)):
        if fused_by(recipe.graph, name)[1].counts == {name: 1}:
            return recipe
    raise AssertionError(f"no sample of {FUSIONS[name].replace} makes a graph that fusion {name} accepts")


def found_in_samples(name: str, i: int) -> Iterator[Recipe]:
    """The decompositions of samples, fused as far as the pattern wants it."""
    fusion = FUSIONS[name]
    pattern, variables = fusion.patterns()[i]
    for sample in fusion.replace.samples():
        names = names_of(pattern, variables, sample)
        if names is None:
            continue
        g = Builder()
        leaves = leaves_of(g, fusion.replace, sample, names)
        assert fusion.replace.decompose is not None
        with g.scope("layers.0"):
            made = fusion.replace.decompose(
                g, *leaves.values(), **{**fusion.replace.attributes, **sample.attributes}
            )
        results = made if isinstance(made, tuple) else (made,)
        recipe = Recipe(
            g.finish(**as_outputs(results, len(results) > 1)),
            {variable: (sample, j) for j, variable in enumerate(names)},
        )
        graph = fuse(recipe.graph, ingredients(fusion.replace) - {fusion.replace})[0]
        if any(find(pattern, node, graph.users()) for node in graph.nodes):
            yield Recipe(unrelated(graph), recipe.fills)


def unrelated(graph: Graph) -> Graph:
    """The graph as if it had been built so: no node comes from another."""
    return rebuild(graph, lambda node: replace(node, origin=()))


def ingredients(op: Op) -> set[Op]:
    """The fused op and those that it is made of."""
    found = {op}
    while True:
        more = {
            part
            for fusion in FUSIONS.values()
            if fusion.replace in found
            for ops in fusion.ops()
            for part in ops
            if part.decompose is not None
        }
        if more <= found:
            return found
        found |= more


def fused_by(graph: Graph, name: str) -> tuple[Graph, FusionLog]:
    """The graph after the fusions that make the same op, those that come last among them."""
    return fuse(graph, {FUSIONS[name].replace}, last=FUSIONS[name].last)


def fuse_all(graph: Graph, wanted: set[Op]) -> tuple[Graph, FusionLog]:
    """First those that do not come last, then those that do."""
    once, log = fuse(graph, wanted)
    twice, more = fuse(once, wanted, last=True)
    return twice, log + more
