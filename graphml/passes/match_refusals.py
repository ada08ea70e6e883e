"""Why a match is refused, whatever its fusion says: what reads it, its order, its attributes.

The attributes of all covered nodes become those of one node: of equal names the root's, and those that the
fused op does not know are dropped. So each is compared with what the op's decomposition has in its place.
Knows matches, states and decompositions; replaces nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

from graphml.ir.fused import decomposition
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Pattern, Term
from graphml.ir.ops.leaf import state_leaf
from graphml.ir.state_order import changed_by
from graphml.passes.rewrite import Match, Refusal, Users, find, root_of

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
