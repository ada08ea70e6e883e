"""What a fusion is, how the known ones are found, and the pass that applies them.

A fusion is one file in `graphml/passes/fusions/`: its fused op with the decomposition into plain ops, and the
terms that it replaces. Knows no backend: it is told which fused ops are wanted.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from graphml.errors import UsageError
from graphml.ir import ops as plain_ops
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Term
from graphml.passes.rewrite import Match, Refusal, almost, find, fuse_node, size, substitute


@dataclass(frozen=True)
class Fusion:
    """A rewriting rule.

    name: what switches and counts call it. find: one function or several, each from variables to a term.
    replace: the fused op; its inputs are the variables in the order of the function's parameters.
    when: why a match is refused (a text, or a `Refusal` that names the node), None to accept.
    attributes: those of the fused node; else the covered nodes' that the fused op knows.
    """

    name: str
    find: Callable[..., Term] | tuple[Callable[..., Term], ...]
    replace: Op
    when: Callable[[Match], str | Refusal | None] = lambda match: None
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
class Applied:
    """A fusion that was made: the fused node's name and the names, as built, of all that it covers."""

    fusion: str
    node: str
    covered: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """A near miss: the root's name, which condition failed, and the node at which it did."""

    fusion: str
    node: str
    reason: str
    at: str | None = None


@dataclass(frozen=True)
class FusionLog:
    """What the fusions did and what they left."""

    applied: tuple[Applied, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How often each fusion was applied; those that never were are left out."""
        return dict(Counter(item.fusion for item in self.applied))

    def __add__(self, later: FusionLog) -> FusionLog:
        """This log and that of a later run over the graph that this one left.

        What the later run looked at again, it alone has the say on.
        """
        refused = dict.fromkeys((*self.refused, *later.refused))
        return FusionLog(self.applied + later.applied, tuple(refused))


def fuse(
    graph: Graph,
    wanted: Collection[Op],
    names: Collection[str] | None = None,
    refuses: Callable[[Node], str | None] = lambda node: None,
) -> tuple[Graph, FusionLog]:
    """Apply every fusion whose op is `wanted`, the largest terms first, until nothing matches any more.

    names: only the fusions called so; None: all. refuses: why a fused node that would come about cannot be
    run; None where it can. A covered node other than the root must have no other reader and be no output.
    """
    known = [f for f in fusions().values() if f.replace in wanted and (names is None or f.name in names)]
    applied: list[Applied] = []
    while True:
        before = len(applied)
        refused: list[Refused] = []  # what is refused at last: the near misses
        graph = _sweep(graph, known, refuses, applied, refused)
        if len(applied) == before:
            return graph, FusionLog(tuple(applied), tuple(dict.fromkeys(refused)))


@dataclass(frozen=True)
class _Find:
    """A match that a fusion accepts, and the fused node that it makes."""

    fusion: Fusion
    match: Match
    fused: Node

    def make(self, new: Mapping[Node, Node]) -> Node:
        """The fused node on what the operands became."""
        return replace(self.fused, inputs=tuple(new[source] for source in self.fused.inputs))


def _sweep(
    graph: Graph,
    known: Sequence[Fusion],
    refuses: Callable[[Node], str | None],
    applied: list[Applied],
    refused: list[Refused],
) -> Graph:
    """Fuse what was found in the graph, the largest first; what overlaps waits for the next sweep."""
    finds = _finds(graph, known, refuses, refused)
    claimed: set[Node] = set()
    chosen: dict[Node, _Find] = {}
    for found in sorted(finds, key=lambda found: -len(found.match.covered)):
        if claimed.isdisjoint(found.match.covered):
            claimed.update(found.match.covered)
            chosen[found.match.root] = found
    after = substitute(graph, {root: found.make for root, found in chosen.items()})
    for root in (node for node in graph.nodes if node in chosen):
        applied.append(Applied(chosen[root].fusion.name, root.name, chosen[root].fused.origin))
    return after


def _finds(
    graph: Graph,
    known: Sequence[Fusion],
    refuses: Callable[[Node], str | None],
    refused: list[Refused],
) -> list[_Find]:
    """For every node the largest match that a fusion accepts; why nodes without one are refused."""
    users = graph.users()
    wanted = set(graph.outputs.values())
    rules: dict[Op, list[tuple[Fusion, Term, tuple[str, ...]]]] = {}
    for fusion in known:
        for term, names in fusion.terms():
            rules.setdefault(term.op, []).append((fusion, term, names))
    for some in rules.values():
        some.sort(key=lambda rule: -size(rule[1]))
    finds = []
    for node in graph.nodes:
        misses = []
        for fusion, term, names in rules.get(node.op, ()):
            match = find(term, node)
            if match is None:
                refusal = almost(term, node)
            else:
                refusal = _shared(match, users, wanted) or _refusal(fusion, match)
            if match is not None and refusal is None:
                fused = _fused(fusion, match, names)
                reason = refuses(fused)
                if reason is None:
                    finds.append(_Find(fusion, match, fused))
                    break
                refusal = Refusal(f"the backend refuses it: {reason}", node)
            if refusal is not None:
                misses.append(Refused(fusion.name, node.name, refusal.reason, refusal.at.name))
        else:
            refused.extend(misses)
    return finds


def _shared(match: Match, users: Mapping[Node, Sequence[Node]], wanted: Collection[Node]) -> Refusal | None:
    for node in match.covered[1:]:
        if node in wanted or any(user not in match.covered for user in users[node]):
            return Refusal(f"{node.name} is read by others too", node)
    return None


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
    return fuse_node(fusion.replace, match, [match.variables[name] for name in names], attributes)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an error message: the known names nearest to one that is not known, or nothing."""
    close = difflib.get_close_matches(name, list(known), 3, 0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def switched(switches: str, origin: str = "fuse") -> frozenset[str]:
    """The names of the fusions that are on: "" or "all", "none", "-swiglu,+linear", "none,+swiglu".

    A switch names a fusion, or a fused op and so all fusions that make it. origin: who gave the switches, for
    the `UsageError` that an unknown name is.
    """
    known = fusions()
    groups = {
        f.replace.name: [g.name for g in known.values() if g.replace is f.replace] for f in known.values()
    }
    groups |= {name: [name] for name in known}
    on = set(known)
    for position, switch in enumerate(part.strip() for part in switches.split(",") if part.strip()):
        if switch in ("all", "none"):
            if position:
                raise UsageError(f"{origin}: {switch!r} comes first or not at all; got {switches!r}")
            on = set(known) if switch == "all" else set()
            continue
        sign, name = switch[0], switch[1:]
        if sign not in "+-":
            raise UsageError(
                f"{origin}: wanted all, none, +NAME or -NAME; got {switch!r} (only these: none,+NAME)"
                f"{nearest(switch, groups)}"
            )
        if name not in groups:
            raise UsageError(
                f"{origin}: no fusion is called {name!r}.{nearest(name, groups)} Known: {', '.join(groups)}"
            )
        on = on | set(groups[name]) if sign == "+" else on - set(groups[name])
    return frozenset(on)
