"""Pattern matching on graphs, and the replacement of covered nodes by one fused node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from graphml.ir.builder import complete
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Pattern, Several, Term, Type
from graphml.ir.ops.layout import part

Users = Mapping[Node, Sequence[Node]]


@dataclass(frozen=True)
class Match:
    """A match of a pattern: the node of each variable and the nodes that the pattern covers, root first.

    Terms that are equal in the pattern match one node, other terms different ones: there is a covered node
    for each term, in the order of the pattern. results: the covered nodes whose values the fused node
    computes, in order; others may read them. repeated: of `Several`, the variables of each node alone.
    """

    variables: Mapping[str, Node]
    covered: tuple[Node, ...]
    results: tuple[Node, ...]
    repeated: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)

    @property
    def root(self) -> Node:
        """The node that the pattern was matched at; the last result, or the first node of `Several`."""
        return self.covered[0]

    def operands(self, names: Sequence[str]) -> list[Node]:
        """The nodes of some variables, in order."""
        return [node for name in names for node in self.repeated.get(name) or (self.variables[name],)]

    def attributes(self) -> dict[str, Attribute]:
        """The attributes of all covered nodes; the root's take precedence."""
        merged: dict[str, Attribute] = {}
        for node in reversed(self.covered):
            merged.update(node.attributes)
        return merged


@dataclass(frozen=True)
class Refusal:
    """Why a match is refused, and the node at which the condition failed."""

    reason: str
    at: Node


def find(pattern: Pattern, root: Node, users: Users) -> Match | None:
    """Match a pattern with its root at a node; operands of commutative ops match in either order.

    A variable is a value that the fused node reads, so no covered node: `mul(relu(x), y)` is no match of
    `r * r` with r the result of `relu`.
    """
    if isinstance(pattern, Several):
        return _match_several(pattern, root, users)
    variables: dict[str, Node] = {}
    covered: list[tuple[Term, Node]] = []
    if not _match(root_of(pattern), root, variables, covered):
        return None
    node_of = dict(covered)
    nodes = tuple(dict.fromkeys(node for _, node in covered))
    if len(node_of) != len(nodes) or not set(nodes).isdisjoint(variables.values()):
        return None
    terms = pattern if isinstance(pattern, tuple) else (pattern,)
    return Match(variables, nodes, tuple(node_of[term] for term in terms))


def _match_several(pattern: Several, root: Node, users: Users) -> Match | None:
    variables: dict[str, Node] = {}
    if not _match(pattern.term, root, variables, []):
        return None
    shared = variables[pattern.sharing]
    matches: list[tuple[dict[str, Node], list[tuple[Term, Node]]]] = []
    for node in dict.fromkeys(users[shared]):
        bound, covered = {pattern.sharing: shared}, list[tuple[Term, Node]]()
        if _match(pattern.term, node, bound, covered):
            matches.append((bound, covered))
    heads = tuple(covered[0][1] for _, covered in matches)
    if len(matches) < 2 or heads[0] is not root:
        return None
    nodes = dict.fromkeys(node for _, covered in matches for _, node in covered)
    if any(value in nodes for bound, _ in matches for value in bound.values()):
        return None
    repeated = {
        name: tuple(bound[name] for bound, _ in matches) for name in variables if name != pattern.sharing
    }
    return Match({pattern.sharing: shared}, tuple(nodes), heads, repeated)


def root_of(pattern: Pattern) -> Term:
    """The term that matches a pattern's root."""
    if isinstance(pattern, Several):
        return pattern.term
    return pattern[-1] if isinstance(pattern, tuple) else pattern


def size(pattern: Pattern) -> int:
    """The least number of nodes that a match of the pattern covers."""
    return 2 * pattern.term.size if isinstance(pattern, Several) else root_of(pattern).size


def almost(pattern: Pattern, root: Node, users: Users) -> Refusal | None:
    """The near miss of a pattern of at least three ops that fails by a single op or attribute."""
    if isinstance(pattern, Several):
        return _near_miss_of_several(pattern, root, users)
    term = root_of(pattern)
    if not may_nearly_match(pattern, [source.op for source in root.inputs]):
        return None
    misses = _misses(term, root)
    if len(misses) != 1:
        return None
    wanted, node = misses[0]
    return Refusal(_mismatch(wanted, node), node)


def may_match(pattern: Pattern, ops: Sequence[Op]) -> bool:
    """Whether a node can be the pattern's root by the ops of its operands; those of most nodes cannot."""
    return _differing(root_of(pattern), ops) == 0


def may_nearly_match(pattern: Pattern, ops: Sequence[Op]) -> bool:
    """Whether a node whose operands have these ops can be the root of a near miss."""
    if isinstance(pattern, Several):
        return may_match(pattern, ops)
    return root_of(pattern).size >= 3 and _differing(root_of(pattern), ops) <= 1


def _differing(term: Term, ops: Sequence[Op]) -> int:
    """How many operands are of other ops than the term's, in the better order; 2 if their number differs."""
    if len(ops) != len(term.heads):
        return 2
    orders = [ops, [ops[1], ops[0], *ops[2:]]] if term.op.commutative else [ops]
    return min(
        sum(op is not None and op is not other for op, other in zip(term.heads, order, strict=True))
        for order in orders
    )


def _near_miss_of_several(pattern: Several, root: Node, users: Users) -> Refusal | None:
    """The near miss of a lone node: another node of its op fails by an attribute or its operands."""
    variables: dict[str, Node] = {}
    if not _match(pattern.term, root, variables, []):
        return None
    others = [node for node in dict.fromkeys(users[variables[pattern.sharing]]) if node is not root]
    if any(_match(pattern.term, node, {}, []) for node in others):
        return None  # one of them is the root of the match
    for node in others:
        if node.op is pattern.term.op and len(node.inputs) == len(pattern.term.arguments):
            return Refusal(_mismatch(pattern.term, node), node)
    return None


def _mismatch(wanted: Term, node: Node) -> str:
    if node.op is not wanted.op:
        return f"{node.name} is {node.op.name}; wanted {wanted.op.name}"
    other = [f"{name}={node.attributes.get(name)!r}" for name, value in wanted.required
             if node.attributes.get(name) != value]  # fmt: skip
    return f"{node.name} has {', '.join(other)}; wanted {wanted!r}"


def _misses(term: Term | str, node: Node) -> list[tuple[Term, Node]]:
    """The ops of a term that the node does not match, in the better order of operands."""
    if isinstance(term, str):
        return []
    if len(node.inputs) != len(term.arguments):
        return [(term, node)] * size(term)
    here = [] if _fits(term, node) else [(term, node)]
    orders: list[Sequence[Node]] = [node.inputs]
    if term.op.commutative:
        orders.append((node.inputs[1], node.inputs[0], *node.inputs[2:]))
    misses = [
        [miss for t, n in zip(term.arguments, inputs, strict=True) for miss in _misses(t, n)]
        for inputs in orders
    ]
    return here + min(misses, key=len)


def _fits(term: Term, node: Node) -> bool:
    if node.op is not term.op:
        return False
    return not term.required or all(node.attributes.get(name) == value for name, value in term.required)


def _match(term: Term, node: Node, variables: dict[str, Node], covered: list[tuple[Term, Node]]) -> bool:
    """Whether a term matches a node; adds what it binds and covers, which is of no use if it does not."""
    if not _fits(term, node):
        return False
    inputs, heads = node.inputs, term.heads
    if len(inputs) != len(heads):
        return False
    if not term.op.commutative:
        return _has_heads(inputs, heads) and _match_all(term, node, inputs, variables, covered)
    swapped = (inputs[1], inputs[0], *inputs[2:])
    if not _has_heads(swapped, heads):
        return _has_heads(inputs, heads) and _match_all(term, node, inputs, variables, covered)
    if _has_heads(inputs, heads):
        trial_variables, trial_covered = dict(variables), list(covered)
        if _match_all(term, node, inputs, trial_variables, trial_covered):
            variables.update(trial_variables)
            covered[:] = trial_covered
            return True
    return _match_all(term, node, swapped, variables, covered)


def _has_heads(inputs: Sequence[Node], heads: Sequence[Op | None]) -> bool:
    """Whether the operands have the ops of a term's arguments; those of most nodes do not."""
    for source, op in zip(inputs, heads, strict=True):  # noqa: SIM110 - runs for every node and pattern
        if op is not None and op is not source.op:
            return False
    return True


def _match_all(
    term: Term,
    node: Node,
    inputs: Sequence[Node],
    variables: dict[str, Node],
    covered: list[tuple[Term, Node]],
) -> bool:
    """Whether the term's arguments match these operands, in this order."""
    covered.append((term, node))
    for argument, source in zip(term.arguments, inputs, strict=True):
        if isinstance(argument, str):
            if variables.setdefault(argument, source) is not source:
                return False
        elif not _match(argument, source, variables, covered):
            return False
    return True


def fuse_node(op: Op, match: Match, inputs: Sequence[Node], attributes: Mapping[str, Attribute]) -> Node:
    """The fused node of a match, with its origin.

    It has the root's name. With several results its name joins theirs, and their `parts` keep them.
    """
    full = complete(op, attributes)
    kind: Type = op.infer([node.type for node in inputs], full)
    name = _joint_name(match.results) if kind.parts else match.root.name
    return Node(op, tuple(inputs), kind, name, full, match.root.source, _origin(match.covered))


def parts(fused: Node, match: Match) -> tuple[Node, ...]:
    """The nodes through which the results of a fused node are read, with the names of the replaced nodes."""
    return tuple(
        Node(part, (fused,), kind, node.name, complete(part, {"index": i}), node.source, _origin((node,)))
        for i, (node, kind) in enumerate(zip(match.results, fused.type.parts, strict=True))
    )


def _origin(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for node in nodes for name in (node.origin or (node.name,))))


def _joint_name(nodes: Sequence[Node]) -> str:
    """`layers.0.q`, `layers.0.k` -> `layers.0.q+k`, with the scope of the last one."""
    scope, dot, _ = nodes[-1].name.rpartition(".")
    return scope + dot + "+".join(node.name.rpartition(".")[2] for node in nodes)


Make = Callable[[Mapping[Node, Node]], "tuple[Node, Mapping[Node, Node]]"]
"""Replaced nodes -> a fused node, and the replacement of each of its results."""


def substitute(graph: Graph, chosen: Mapping[Node, Make], gone: Collection[Node] = ()) -> Graph:
    """Replace the chosen nodes; each replacement is made from the replacements of the nodes before it.

    A chosen node is the first result of its replacement. Leaves that the replacement reads move before it.
    gone: nodes to drop because nothing reads them any more; otherwise one that changes a state would stay.
    """
    new = {node: node for node in graph.nodes if node.op.family == "leaf"}  # replacements may read each
    order: dict[Node, None] = {}
    before: set[Node] = set()  # results of replacements at nodes before them
    for node in graph.nodes:
        if node in before or node in gone:
            continue
        make = chosen.get(node)
        if make is None:
            replacement = node.on(tuple([new[source] for source in node.inputs])) if node.inputs else node
            new[node] = replacement
            order[replacement] = None
            continue
        fused, became = make(new)
        order.update(dict.fromkeys(leaf for leaf in fused.inputs if leaf.op.family == "leaf"))
        order[fused] = None
        for result, replacement in became.items():
            new[result] = replacement
            order[replacement] = None
            before.add(result)
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})


def rebuild(graph: Graph, change: Callable[[Node], Node | tuple[Node, ...]]) -> Graph:
    """Apply `change` to every node in order, after its inputs.

    `change` returns the node that replaces its argument, or several: the last replaces it, the others are new
    and come before it. The graph itself where nothing changes.
    """
    new: dict[Node, Node] = {}
    order: dict[Node, None] = {}
    for node in graph.nodes:
        result = change(node.on(tuple([new[source] for source in node.inputs])))
        if isinstance(result, tuple):
            order.update(dict.fromkeys(result))
            new[node] = result[-1]
        else:
            order[result] = None
            new[node] = result
    rebuilt = make_graph(order, {name: new[node] for name, node in graph.outputs.items()})
    return graph if (rebuilt.nodes, rebuilt.outputs) == (graph.nodes, graph.outputs) else rebuilt
