"""Fusions: their definition, the table of known ones, and the pass that applies them.

A fusion is one file in `graphml/passes/fusions/`: its fused op with the decomposition into plain ops, and the
terms that it replaces. Whatever a fusion says, a match is refused for what else reads it, its order, or an
attribute: those of all covered nodes become those of one node, so each is compared with what the op's
decomposition has in its place. Knows no backend: the caller passes the fused ops to use.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypeAlias
from weakref import WeakKeyDictionary

from graphml.errors import GraphError
from graphml.ir import ops as plain_ops
from graphml.ir.fused import decomposition
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Pattern, Term
from graphml.ir.op_table import own_op, own_ops
from graphml.ir.ops.leaf import state_leaf
from graphml.ir.state_order import changed_by
from graphml.passes.fusion_log import AppliedFusion, FusionLog, Refused
from graphml.passes.rewrite import (
    Match,
    Refusal,
    Users,
    almost,
    find,
    fuse_node,
    may_match,
    may_nearly_match,
    parts,
    root_of,
    size,
    substitute,
)

_Covered = Sequence[Mapping[str, Attribute | None]] | None
_covered: WeakKeyDictionary[Graph, dict[int, tuple[Pattern, _Covered]]] = WeakKeyDictionary()


def shared(match: Match, users: Users, wanted: Collection[Node]) -> Refusal | None:
    """Refuse a match of which others read a value that would be gone. wanted: the graph's outputs."""
    for node in match.covered:
        if node in match.results:
            continue
        if node in wanted or any(user not in match.covered for user in users[node]):
            return Refusal(f"{node.name} is read by others too", node)
    return None


def operands_too_late(match: Match, names: Sequence[str], position: Mapping[Node, int]) -> Refusal | None:
    """Refuse a match whose operands are computed after its first result, where the fused node is put."""
    first = min(match.results, key=position.__getitem__)
    for node in match.operands(names):
        if node.op.family != "leaf" and position[node] > position[first]:
            return Refusal(f"{node.name} is computed after {first.name}", node)
    return None


def state_out_of_order(match: Match, users: Users, position: Mapping[Node, int]) -> Refusal | None:
    """Refuse a match that would move the read of a state past its change, or its change before a read."""
    place = min(position[node] for node in match.results)
    for node in match.covered:
        if node.op.writes is None and not node.op.reads and node.op.decompose is None:
            continue
        for version in node.inputs:
            if version.op is not state_leaf and not version.op.is_write:
                continue
            for other in users[version]:
                late = changed_by(other) is version and position[other] < place
                early = changed_by(node) is version and place < position[node]
                if other not in match.covered and (late or early):
                    return Refusal(f"{node.name} and {other.name} use one state, in this order", node)
    return None


def other_attributes(pattern: Pattern, match: Match, fused: Node, merged: bool) -> Refusal | None:
    """Why a match is refused: an attribute of a covered node is not what the fused node computes with.

    Where the pattern does not find the decomposition, one of several patterns of one op, say, an attribute
    has to be its op's default, one that the pattern requires, or an attribute of the fused node. merged:
    whether the fused node's attributes are the covered nodes'; a fusion that makes others knows why.
    """
    if not any(node.attributes for node in match.covered):
        return None
    plain = decomposition(fused.op, [node.type for node in fused.inputs], fused.attributes)
    known = _covered.setdefault(plain, {})
    held = known.get(id(pattern))  # patterns take long to hash
    if held is None or held[0] is not pattern:
        held = known[id(pattern)] = pattern, _attributes_in(pattern, plain)
    there = held[1]
    if there is None or len(there) != len(match.covered):
        there = [_unpaired(pattern, node, fused) for node in match.covered] if merged else ()
    for node, wanted in zip(match.covered, there, strict=bool(there)):
        for name, value in node.attributes.items():
            if value is not wanted.get(name) and _shown(value) != _shown(wanted.get(name)):
                reason = f"{node.name} has {name}={value!r}; {fused.op.name} computes with"
                return Refusal(f"{reason} {wanted.get(name)!r}", node)
    return None


def _attributes_in(pattern: Pattern, plain: Graph) -> _Covered:
    """The attributes of each node of a decomposition that a pattern covers, in its order."""
    users = plain.users()
    for node in reversed(plain.nodes):
        match = find(pattern, node, users) if node.op is root_of(pattern).op else None
        if match is not None:
            return [node.attributes for node in match.covered]
    return None


def _unpaired(pattern: Pattern, node: Node, fused: Node) -> Mapping[str, Attribute | None]:
    required = {name for op, name in _required(root_of(pattern)) if op is node.op}
    held = {name: node.attributes[name] for name in required if name in node.attributes}
    return {**node.op.attributes, **fused.attributes, **held}


def _required(term: Term) -> Iterator[tuple[Op, str]]:
    yield from ((term.op, name) for name, _ in term.required)
    for argument in term.arguments:
        if isinstance(argument, Term):
            yield from _required(argument)


def _shown(value: Attribute | None) -> object:
    """A value by what is computed with it: 1 and 1.0 are equal, 0.0 and -0.0 are not."""
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53:
        return repr(float(value))
    return repr(value)


Find: TypeAlias = Callable[..., Pattern] | tuple[Callable[..., Pattern], ...]
Refuses: TypeAlias = Callable[[Node], str | None]
Rule: TypeAlias = "tuple[Fusion, Pattern, tuple[str, ...]]"


@dataclass(frozen=True, eq=False)
class Fusion:
    """A rewriting rule.

    name: used by switches and counts. find: one function or several, each from variables to a pattern.
    replace: the fused op; its inputs are the variables in the order of the function's parameters.
    when: the reason to refuse a match (a text, or a `Refusal` that names the node), None to accept.
    attributes: those of the fused node; by default the covered nodes' that the fused op knows. A match whose
    nodes have others than the fused op's decomposition computes with is refused.
    last: applied after all others and after the conversion of activations: fusions that join finished nodes.
    """

    name: str
    find: Find
    replace: Op
    when: Callable[[Match], str | Refusal | None] = lambda match: None
    attributes: Callable[[Match], Mapping[str, Attribute]] | None = None
    last: bool = False

    def patterns(self) -> Sequence[tuple[Pattern, tuple[str, ...]]]:
        """Each pattern with the names of its variables, in the order of the fused op's inputs."""
        return _patterns(self.find)

    def ops(self) -> Sequence[frozenset[Op]]:
        """The ops in each of its patterns."""
        return _ops_of(self.find)


@functools.cache  # of every fusion, whenever a graph is compiled or switches are read
def _patterns(found_by: Find) -> Sequence[tuple[Pattern, tuple[str, ...]]]:
    functions = found_by if isinstance(found_by, tuple) else (found_by,)
    named = [(f, tuple(inspect.signature(f).parameters)) for f in functions]
    return tuple((f(*names), names) for f, names in named)


@functools.cache
def _ops_of(found_by: Find) -> Sequence[frozenset[Op]]:
    return tuple(frozenset(_ops(root_of(pattern))) for pattern, _ in _patterns(found_by))


def _ops(term: Term) -> Iterator[Op]:
    yield term.op
    for argument in term.arguments:
        if isinstance(argument, Term):
            yield from _ops(argument)


class _PatternIndex:
    """Some fusions' patterns by the ops of their root and of its operands, the largest first.

    Nodes of equal ops with operands of equal ops have the same few patterns to try, in any graph.
    """

    def __init__(self, known: tuple[Fusion, ...]) -> None:
        self.by_root: dict[Op, list[Rule]] = {}
        for fusion in known:
            for pattern, names in fusion.patterns():
                self.by_root.setdefault(root_of(pattern).op, []).append((fusion, pattern, names))
        for some in self.by_root.values():
            some.sort(key=lambda rule: -size(rule[1]))
        self._tried: dict[tuple[Op, ...], Sequence[tuple[Rule, bool]]] = {}

    def tried_at(self, node: Node) -> Sequence[tuple[Rule, bool]]:
        """The patterns that can match at a node, True, or only nearly match, False."""
        key = (node.op, *[source.op for source in node.inputs])
        tried = self._tried.get(key)
        if tried is None:
            rules = [(rule, may_match(rule[1], key[1:])) for rule in self.by_root[node.op]]
            tried = self._tried[key] = [
                (rule, can) for rule, can in rules if can or may_nearly_match(rule[1], key[1:])
            ]
        return tried


@functools.lru_cache(maxsize=64)  # of each part of a placed graph, for each sweep
def _rules(known: tuple[Fusion, ...]) -> _PatternIndex:
    return _PatternIndex(known)


@functools.cache
def _built_in() -> Mapping[str, Fusion]:
    return {fusion.name: fusion for module in _modules() for fusion in _values(module)}


_own: dict[str, Fusion] = {}


def fusions() -> Mapping[str, Fusion]:
    """Name -> fusion, in the order of file names in `graphml/passes/fusions/`, then those that were added."""
    return _with(tuple(fusion for name, fusion in _own.items() if own_op(name) is fusion.replace))


@functools.lru_cache(maxsize=4)
def _with(own: tuple[Fusion, ...]) -> Mapping[str, Fusion]:
    return {**_built_in(), **{fusion.name: fusion for fusion in own}}


def add_fusion(fusion: Fusion) -> None:
    """Add a fusion of one's own; it is there as long as its op is declared."""
    if fusion.name in _built_in():
        raise GraphError(f"fusion {fusion.name!r}: graphml has a fusion of that name; wanted another")
    _own[fusion.name] = fusion


def _modules() -> list[ModuleType]:
    folder = importlib.import_module("graphml.passes.fusions")
    entries = sorted(entry.name for entry in pkgutil.iter_modules(folder.__path__))
    return [importlib.import_module(f"{folder.__name__}.{name}") for name in entries]


def _values(module: ModuleType) -> list[Fusion]:
    return [value for value in vars(module).values() if isinstance(value, Fusion)]


def all_ops() -> Mapping[str, Op]:
    """Name -> op, plain and fused: all ops that a graph's text may use."""
    fused = {fusion.replace.name: fusion.replace for fusion in fusions().values()}
    return {**plain_ops.table(), **fused, **own_ops()}


def fuse(
    graph: Graph,
    wanted: Collection[Op],
    names: Collection[str] | None = None,
    refuses: Refuses = lambda node: None,
    last: bool = False,
    known: Collection[Fusion] | None = None,
) -> tuple[Graph, FusionLog]:
    """Apply every fusion whose op is `wanted`, those that save most values first, until nothing matches.

    names: only the fusions of these names; None: all. refuses: the reason that a fused node cannot be run;
    None if it can. last: apply the fusions marked `last`, or all the others. known: the
    fusions; None: all that there are. A covered node that is no result must have no other reader and be no
    output.
    """
    rules = _rules(
        tuple(
            f
            for f in (fusions().values() if known is None else known)
            if f.replace in wanted and (names is None or f.name in names) and f.last == last
        )
    )
    before = _finished.get(graph)
    if before is not None and before[:2] == (rules, refuses):
        return graph, FusionLog((), before[2])
    applied: list[AppliedFusion] = []
    while True:
        finds, misses = _accepted_matches(graph, rules, refuses)
        if not finds:  # what the last sweep misses are the near misses
            missed = tuple(dict.fromkeys(_refused(misses)))
            _finished[graph] = rules, refuses, missed
            return graph, FusionLog(tuple(applied), missed)
        graph = _replaced(graph, finds, applied)


_finished: WeakKeyDictionary[Graph, tuple[_PatternIndex, Refuses, tuple[Refused, ...]]] = WeakKeyDictionary()
"""Graphs to which some rules do not apply any more: they come back if no pass between changes them."""


@dataclass(frozen=True)
class _Accepted:
    """A match that a fusion accepts, and the fused node that it makes."""

    fusion: Fusion
    match: Match
    fused: Node

    def make(self, new: Mapping[Node, Node]) -> tuple[Node, Mapping[Node, Node]]:
        """The fused node on the replaced operands, and the replacement of each result."""
        fused = self.fused.on(tuple(new[source] for source in self.fused.inputs))
        results = parts(fused, self.match) if fused.type.parts else (fused,)
        return fused, dict(zip(self.match.results, results, strict=True))


_Miss: TypeAlias = tuple[Fusion, Pattern, Node, Refusal | None]
"""A pattern that was tried at a node in vain: with the refusal of its match, None where there was none."""


def _refused(tried: tuple[Users, Sequence[_Miss]]) -> Iterator[Refused]:
    users, misses = tried
    for fusion, pattern, node, reason in misses:
        refusal = reason or almost(pattern, node, users)
        if refusal is not None:
            yield Refused(fusion.name, node.name, refusal.reason, refusal.at.name)


def _replaced(graph: Graph, finds: Sequence[_Accepted], applied: list[AppliedFusion]) -> Graph:
    """Fuse the found matches, the largest first; overlapping ones wait for the next sweep."""
    claimed: set[Node] = set()
    chosen: dict[Node, _Accepted] = {}
    position = {node: i for i, node in enumerate(graph.nodes)}
    for accepted in sorted(finds, key=_savings, reverse=True):
        if claimed.isdisjoint(accepted.match.covered):
            claimed.update(accepted.match.covered)
            chosen[min(accepted.match.results, key=position.__getitem__)] = accepted
    inner = {node for accepted in chosen.values() for node in accepted.match.covered} - {
        node for accepted in chosen.values() for node in accepted.match.results
    }
    after = substitute(graph, {first: accepted.make for first, accepted in chosen.items()}, inner)
    for accepted in (chosen[node] for node in graph.nodes if node in chosen):
        applied.append(AppliedFusion(accepted.fusion.name, accepted.fused.name, accepted.fused.origin))
    return after


def _savings(accepted: _Accepted) -> tuple[int, int]:
    """How many values are no longer computed, then how many nodes become one."""
    return len(accepted.match.covered) - len(accepted.match.results), len(accepted.match.covered)


def _accepted_matches(
    graph: Graph, rules: _PatternIndex, refuses: Refuses
) -> tuple[list[_Accepted], tuple[Users, list[_Miss]]]:
    """For every node the largest match that a fusion accepts, or what was tried if there is none."""
    roots = [node for node in graph.nodes if node.op in rules.by_root]
    finds: list[_Accepted] = []
    misses: list[_Miss] = []
    if not roots:
        return finds, ({}, misses)
    users = graph.users()
    wanted = set(graph.outputs.values())
    position = {node: i for i, node in enumerate(graph.nodes)}
    taken = {node.name for node in graph.nodes}
    for node in roots:
        missed: list[_Miss] = []
        for (fusion, pattern, names), can_match in rules.tried_at(node):
            match = find(pattern, node, users) if can_match else None
            if match is None:
                missed.append((fusion, pattern, node, None))
                continue
            refusal = (
                shared(match, users, wanted)
                or _refusal(fusion, match)
                or operands_too_late(match, names, position)
                or state_out_of_order(match, users, position)
            )
            if refusal is None:
                fused = _with_unique_name(_fused(fusion, match, names), taken)
                refusal = _fused_refusal(fusion, pattern, match, fused, refuses)
                if refusal is None:
                    finds.append(_Accepted(fusion, match, fused))
                    break
            missed.append((fusion, pattern, node, refusal))
        else:
            misses += missed
    return finds, (users, misses)


def _fused_refusal(
    fusion: Fusion, pattern: Pattern, match: Match, fused: Node, refuses: Refuses
) -> Refusal | None:
    refusal = other_attributes(pattern, match, fused, merged=fusion.attributes is None)
    if refusal is not None:
        return refusal
    reason = refuses(fused)
    return None if reason is None else Refusal(f"the backend refuses it: {reason}", match.root)


def _with_unique_name(fused: Node, taken: Collection[str]) -> Node:
    """Rename a node with several results if a tensor of the file has its name already."""
    name = fused.name
    while fused.type.parts and name in taken:
        name += "+"
    return fused if name == fused.name else replace(fused, name=name)


def _refusal(fusion: Fusion, match: Match) -> Refusal | None:
    reason = fusion.when(match)
    return Refusal(reason, match.root) if isinstance(reason, str) else reason


def _fused(fusion: Fusion, match: Match, names: tuple[str, ...]) -> Node:
    known = fusion.replace.attributes
    attributes = (
        fusion.attributes(match)
        if fusion.attributes is not None
        else {name: value for name, value in match.attributes().items() if name in known}
    )
    return fuse_node(fusion.replace, match, match.operands(names), attributes)
