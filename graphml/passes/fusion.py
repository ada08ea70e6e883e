"""What a fusion is, how the known ones are found, and the pass that applies them.

A fusion is one file in `graphml/passes/fusions/`: its fused op with the decomposition into plain ops, and the
terms that it replaces. Knows no backend: it is told which fused ops are wanted.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from graphml.ir import ops as plain_ops
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Term
from graphml.passes.rewrite import Match, find, fuse_node, rebuild


@dataclass(frozen=True)
class Fusion:
    """A rewriting rule.

    name: what switches and counts call it. find: one function or several, each from variables to a term.
    replace: the fused op; its inputs are the variables in the order of the function's parameters.
    when: why a match is refused, None to accept. attributes: those of the fused node; else the covered nodes'
    that the fused op knows.
    """

    name: str
    find: Callable[..., Term] | tuple[Callable[..., Term], ...]
    replace: Op
    when: Callable[[Match], str | None] = lambda match: None
    attributes: Callable[[Match], Mapping[str, Attribute]] | None = None

    def terms(self) -> list[tuple[Term, tuple[str, ...]]]:
        """Each term with the names of its variables, in the order of the fused op's inputs."""
        functions = self.find if isinstance(self.find, tuple) else (self.find,)
        named = [(f, tuple(inspect.signature(f).parameters)) for f in functions]
        return [(f(*names), names) for f, names in named]


@functools.cache
def fusions() -> Mapping[str, Fusion]:
    """Name -> fusion, in the order of file names, found in `graphml/passes/fusions/`."""
    return {fusion.name: fusion for module in _modules() for fusion in _values(module)}


def _modules() -> list[ModuleType]:
    folder = importlib.import_module("graphml.passes.fusions")
    entries = sorted(entry.name for entry in pkgutil.iter_modules(folder.__path__))
    return [importlib.import_module(f"{folder.__name__}.{name}") for name in entries]


def _values(module: ModuleType) -> list[Fusion]:
    return [value for value in vars(module).values() if isinstance(value, Fusion)]


def all_ops() -> Mapping[str, Op]:
    """Name -> op, plain and fused: what a graph's text may use."""
    return {**plain_ops.table(), **{fusion.replace.name: fusion.replace for fusion in fusions().values()}}


@dataclass(frozen=True)
class FusionCount:
    """How often each fusion was applied, and why matches were refused: (root's name, reason)."""

    applied: Mapping[str, int]
    refused: Mapping[str, Sequence[tuple[str, str]]]


def fuse(graph: Graph, wanted: Collection[Op]) -> tuple[Graph, FusionCount]:
    """Apply every fusion whose op is `wanted`, the largest terms first, until nothing matches any more.

    A covered node other than the root must have no other reader and be no output.
    """
    known = [fusion for fusion in fusions().values() if fusion.replace in wanted]
    applied: dict[str, int] = {}
    while True:
        before = sum(applied.values())
        refused: dict[str, list[tuple[str, str]]] = {}  # what is refused at last: the near misses
        graph = _sweep(graph, known, applied, refused)
        if sum(applied.values()) == before:
            return graph, FusionCount(applied, refused)


def _sweep(
    graph: Graph, known: Sequence[Fusion], applied: dict[str, int], refused: dict[str, list[tuple[str, str]]]
) -> Graph:
    """One pass over the nodes, each fused at most once."""
    readers = {node.name: len(users) for node, users in graph.users().items()}
    for node in graph.outputs.values():
        readers[node.name] += 2
    rules = [(fusion, term, names) for fusion in known for term, names in fusion.terms()]
    rules.sort(key=lambda rule: -_size(rule[1]))

    def change(node: Node) -> Node:
        for fusion, term, names in rules:
            match = find(term, node)
            if match is None:
                continue
            reason = _shared(match, readers) or fusion.when(match)
            if reason is not None:
                refused.setdefault(fusion.name, []).append((node.name, reason))
                continue
            applied[fusion.name] = applied.get(fusion.name, 0) + 1
            return fuse_node(
                fusion.replace, match, [match.variables[n] for n in names], _attributes(fusion, match)
            )
        return node

    return rebuild(graph, change)


def _size(term: Term) -> int:
    return 1 + sum(_size(t) for t in term.arguments if isinstance(t, Term))


def _shared(match: Match, readers: Mapping[str, int]) -> str | None:
    for node in match.covered[1:]:
        if readers[node.name] > 1:
            return f"{node.name} is read by others too"
    return None


def _attributes(fusion: Fusion, match: Match) -> Mapping[str, Attribute]:
    if fusion.attributes is not None:
        return fusion.attributes(match)
    return {name: value for name, value in match.attributes().items() if name in fusion.replace.attributes}
