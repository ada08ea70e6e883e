"""Placement of nodes on several backends: by the user's rules, by the ops that each can run, next to states.

Knows backends only through `graphml.backend`; the caller passes a function that fuses a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graphml.backend import Backend
from graphml.errors import UsageError, did_you_mean
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.state_order import state_of
from graphml.passes.cut import Cut, Split, constants, cut_graph
from graphml.passes.placement_rules import Rule, layer_of
from graphml.passes.refusals import refusals

Shaped = Callable[[Graph, Backend], Graph]
"""The passes of the compiler on a part for a backend before lowering: fused, activations converted."""


@dataclass(frozen=True)
class Placed:
    """The backend of a node, and why. refused: another backend was preferred, but has no kernel for it."""

    name: str
    op: str
    backend: str
    reason: str
    refused: str | None = None


@dataclass(frozen=True)
class Placement:
    """Every computed node and every state by name -> its place; the resulting parts."""

    backends: tuple[str, ...]
    places: Mapping[str, Placed]
    cut: Cut

    @property
    def fallbacks(self) -> list[Placed]:
        """The nodes that are on another backend because the preferred one refuses them."""
        return [placed for placed in self.places.values() if placed.refused is not None]

    def states(self) -> dict[str, str]:
        """State -> its backend."""
        return {name: placed.backend for name, placed in self.places.items() if placed.op == "state"}


@dataclass
class _Unit:
    """Nodes that must be on one backend: those around one state, or a value and its views."""

    nodes: list[Node]
    backend: str = ""
    reason: str = ""
    ruled: bool = False
    anchor: Node | None = None
    selected: set[Node] = field(default_factory=set)  # those that the rule itself selects
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)  # backend -> (node, reason)
    settled: bool = False  # all backends refuse it


def place(
    graph: Graph,
    backends: Sequence[Backend],
    rules: Sequence[Rule] = (),
    shaped: Shaped = lambda graph, backend: graph,
    homes: Mapping[str, str] | None = None,
) -> Placement:
    """Place every node of a graph of plain ops.

    backends: the preferred first; a node goes to the first that does not refuse it. homes: the backends of
    states that exist already. Refusals are checked on the parts after fusion, so that a plain op which a
    backend runs only within a fused one is no fallback (decision 8).
    """
    return _Placer(graph, backends, rules, shaped, homes or {}).run()


class _Placer:
    def __init__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        rules: Sequence[Rule],
        shaped: Shaped,
        homes: Mapping[str, str],
    ) -> None:
        self.graph, self.rules, self.shaped, self.homes = graph, rules, shaped, homes
        self.backends = {backend.name: backend for backend in backends}
        self.names = list(self.backends)
        self.unit = _units(graph)
        self.units = list({id(unit): unit for unit in self.unit.values()}.values())
        self.named = {node.name: node for node in self.unit}
        self._last: tuple[list[str], Cut] | None = None

    def run(self) -> Placement:
        self._place_by_rules()
        while self._fall_back():
            pass
        self._join()
        places: dict[str, Placed] = {}
        for node, unit in self.unit.items():
            refused = None
            if unit.refused:
                refused = "; ".join(
                    f"{name} refuses {what}: {why}" if what != node.name else f"{name} refuses: {why}"
                    for name, (what, why) in unit.refused.items()
                )
                refused += "; runs in NumPy" if unit.settled else ""
            reason = unit.reason
            if unit.anchor is not None and node not in unit.selected:
                reason = f"placed with {unit.anchor.name} ({reason})"
            places[node.name] = Placed(node.name, node.op.name, unit.backend, refused or reason, refused)
        return Placement(tuple(self.names), places, self._cut())

    def _place_by_rules(self) -> None:
        """Place each unit as if no backend refused anything."""
        used: set[int] = set()
        for unit in self.units:
            unit.backend, unit.reason = self.names[0], "preferred"
            named = {
                node: [i for i, rule in enumerate(self.rules) if rule.matches(node, self._names(node))]
                for node in unit.nodes
            }
            used |= {i for numbers in named.values() for i in numbers}
            best = max((i for numbers in named.values() for i in numbers), default=None)
            if best is not None:
                unit.backend, unit.reason = self.rules[best].backend, f"rule {self.rules[best]}"
                unit.ruled, unit.selected = True, {node for node, numbers in named.items() if best in numbers}
            for node in unit.nodes:
                home = self.homes.get(node.name) if node.op.name == "state" else None
                if home not in (None, unit.backend):
                    unit.backend, unit.reason, unit.ruled = home or "", f"{node.name} lives there", True
                    unit.selected = {node}
            unit.anchor = next((node for node in unit.nodes if node in unit.selected), None)
        for i, rule in enumerate(self.rules):
            if i not in used:
                self._unknown(rule)

    def _names(self, node: Node) -> list[str]:
        """The node's own name, and those of the leaves that it reads, through constants too."""
        names = [node.name]
        stack = list(node.inputs)
        while stack:
            source = stack.pop()
            if source.op.family == "leaf":
                names.append(source.name)
            elif source not in self.unit:
                stack += source.inputs
        return names

    def _unknown(self, rule: Rule) -> None:
        ops = sorted({node.op.name for node in self.unit if node.op.family != "leaf"})
        hint = did_you_mean(rule.selects, [*ops, *self.named], 1) or f" Ops: {', '.join(ops)}."
        raise UsageError(f"place: {str(rule)!r} names no node of the graph.{hint}")

    def _cut(self) -> Cut:
        """The cut of the units as they are placed now; the last one where none has moved since."""
        where = [unit.backend for unit in self.units]
        if self._last is None or self._last[0] != where:
            cut = cut_graph(self.graph, {node: unit.backend for node, unit in self.unit.items()})
            self._last = where, cut
        return self._last[1]

    def _refused(self) -> list[tuple[_Unit, str, str, str]]:
        """Refusals of the current cut: unit, backend, node, reason."""
        refused = []
        for part in self._cut().parts:
            ready = self.shaped(part.graph, self.backends[part.backend])
            users: dict[Node, list[Node]] | None = None
            for node, reason in refusals(ready, self.backends[part.backend]):
                plain = [name for name in node.origin or (node.name,) if name in self.named]
                if node.op.decompose is None and node.name not in self.named:  # a pass made it for its users
                    users = users or ready.users()
                    plain = [
                        name
                        for user in users[node]
                        for name in user.origin or (user.name,)
                        if name in self.named
                    ]
                refused += [(self.unit[self.named[name]], part.backend, node.name, reason) for name in plain]
        return refused

    def _fall_back(self) -> bool:
        """Move refused units to the next backend; returns whether anything moved."""
        moved = False
        for unit, backend, name, reason in self._refused():
            if unit.settled or backend in unit.refused:
                continue
            unit.refused[backend] = (name, reason)
            left = [other for other in self.names if other not in unit.refused]
            if left:
                unit.backend, moved = left[0], True
            else:  # it stays on the preferred backend, which runs it in NumPy
                unit.settled, unit.backend, moved = True, next(iter(unit.refused)), True
        return moved

    def _join(self) -> None:
        """Move whole light parts to a neighbour's backend if that saves a cut."""
        barred: set[tuple[int, str]] = set()
        while True:
            cut = self._cut()
            moves: dict[int, tuple[_Unit, str, str]] = {}
            last_moved = -2
            for part in cut.parts:
                units = self._units_of(part)
                to = self._neighbour(cut, part.index)
                if to is None or last_moved == part.index - 1:
                    continue
                if all(self._light(unit) and (i, to) not in barred for i, unit in units.items()):
                    moves |= {i: (unit, unit.backend, unit.reason) for i, unit in units.items()}
                    for unit in units.values():
                        unit.backend, unit.reason = to, "placed with its neighbours to avoid a cut"
                    last_moved = part.index
            if not moves:
                return
            refused = {(id(unit), backend) for unit, backend, *_ in self._refused() if id(unit) in moves}
            if refused or len(self._cut().parts) >= len(cut.parts):
                barred |= refused or {(i, unit.backend) for i, (unit, _, _) in moves.items()}
                for unit, backend, reason in moves.values():
                    unit.backend, unit.reason = backend, reason

    def _units_of(self, part: Split) -> dict[int, _Unit]:
        own = (self.named[n.name] for n in part.graph.nodes if n.op.name != "input" and n.name in self.named)
        return {id(unit): unit for unit in (self.unit[node] for node in own)}

    def _neighbour(self, cut: Cut, index: int) -> str | None:
        around = {cut.parts[i].backend for i in (index - 1, index + 1) if 0 <= i < len(cut.parts)}
        return around.pop() if len(around) == 1 else None

    def _light(self, unit: _Unit) -> bool:
        """Whether a unit may move to save a cut: it has no rule, no state, no matrix.

        If whole layers are placed, nodes before the first and after the last layer may follow them.
        """
        if unit.ruled or unit.refused or any(node.op.name == "state" for node in unit.nodes):
            return False
        if any(rule.by_layer for rule in self.rules) and all(layer_of(node) is None for node in unit.nodes):
            return True
        read = (source for node in unit.nodes for source in node.inputs)
        return not any(
            len(source.shape) > 1 for source in read if source.op.name != "input" and source not in self.unit
        )


def _units(graph: Graph) -> dict[Node, _Unit]:
    """Computed nodes and states -> their unit; constants, weights and inputs have none."""
    known = constants(graph)
    unit: dict[Node, _Unit] = {}
    for node in graph.nodes:
        if node.op.name in ("weight", "input") or node in known:
            continue
        merged = _Unit([])
        bound = [s for s in node.inputs if state_of(s) is not None]
        bound += [s for s in node.inputs[:1] if node.op.view]
        for source in bound:
            other = unit.get(source)
            if other is not None and other is not merged:
                if len(other.nodes) > len(merged.nodes):
                    merged, other = other, merged
                merged.nodes += other.nodes
                unit |= dict.fromkeys(other.nodes, merged)
        merged.nodes.append(node)
        unit[node] = merged
    return unit
