"""Rules of a parsed GBNF grammar: elements, alternatives, sets of characters, and the checks over all rules.

Knows neither the grammar's text nor how it is matched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

LAST_VALUE: Final = (1 << 22) - 1
"""The largest value that a lead byte and three continuation bytes hold; Unicode ends before, bytes do not."""


@dataclass(frozen=True)
class Characters:
    """A set of code points: ascending, disjoint, inclusive ranges."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, value: int) -> bool:
        return self.overlap(value, value) == 2

    def overlap(self, low: int, high: int) -> int:
        """How much of [low, high] is in the set: 0 nothing, 1 some, 2 all."""
        at = bisect_right(self.ranges, (high, LAST_VALUE + 1)) - 1
        if at < 0 or self.ranges[at][1] < low:
            return 0
        return 2 if self.ranges[at][0] <= low and high <= self.ranges[at][1] else 1

    @cached_property
    def ascii(self) -> tuple[int, ...]:
        """Those below 128, without 0."""
        return tuple(value for low, high in self.ranges for value in range(max(low, 1), min(high, 127) + 1))


def character_set(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Characters:
    """The set of inclusive ranges in any order, or of everything else; an empty range counts as none."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(bounds for bounds in ranges if bounds[0] <= bounds[1]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Characters(tuple(_complement(merged) if negated else merged))


def _complement(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    start = 0
    for low, high in ranges:
        if start < low:
            yield start, low - 1
        start = high + 1
    if start <= LAST_VALUE:
        yield start, LAST_VALUE


@dataclass(frozen=True)
class RuleReference:
    """Another rule, by its number."""

    rule: int


@dataclass(frozen=True)
class OneToken:
    """Exactly the token with this id, or (negated) any other one."""

    token: int
    negated: bool


Element: TypeAlias = Characters | RuleReference | OneToken
Alternative: TypeAlias = list[Element]


@dataclass
class Rules:
    """All rules, by number: alternatives and a name for errors; where each rule was first mentioned.

    A rule without a definition has None. `root` is the number of the rule where a text begins.
    """

    names: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    alternatives: list[list[Alternative] | None] = field(default_factory=list)
    root: int = 0

    def add(self, name: str, offset: int) -> int:
        """Number a new rule."""
        self.names.append(name)
        self.offsets.append(offset)
        self.alternatives.append(None)
        return len(self.names) - 1

    def defined(self, rule: int) -> list[Alternative]:
        """The alternatives of a rule that is known to be defined."""
        alternatives = self.alternatives[rule]
        assert alternatives is not None, self.names[rule]
        return alternatives


def left_recursive(rules: Rules) -> int | None:
    """A rule that comes back to itself before it has matched anything; None if no rule does.

    Two kinds are refused: what llama.cpp refuses (it sees a rule as possibly empty only if one of its
    alternatives is), and any other cycle that puts something on the stack in each round, which would never
    end. A cycle through last elements alone, such as the repetition of what may be empty, ends by itself.
    """
    numbers = range(len(rules.names))
    direct = {rule for rule in numbers if any(not alternative for alternative in rules.defined(rule))}
    cycle = _cycle([[to for to, _ in _first_rules(rules, rule, direct)] for rule in numbers])
    if cycle is not None:
        return cycle
    empty = _may_be_empty(rules)
    edges = [list(_first_rules(rules, rule, empty)) for rule in numbers]
    component = _components([[to for to, _ in targets] for targets in edges])
    for rule in numbers:
        for to, grows in edges[rule]:
            if grows and component[rule] == component[to]:
                return rule
    return None


def _first_rules(rules: Rules, rule: int, empty: set[int]) -> Iterator[tuple[int, bool]]:
    """Rules that may come first in this one, and whether something follows them there."""
    for alternative in rules.defined(rule):
        for index, element in enumerate(alternative):
            if not isinstance(element, RuleReference):
                break
            yield element.rule, index + 1 < len(alternative)
            if element.rule not in empty:
                break


def _may_be_empty(rules: Rules) -> set[int]:
    """Rules that match the empty text, found by propagation from rules to their users."""
    users: list[list[tuple[int, int]]] = [[] for _ in rules.names]
    waiting: list[list[int]] = []  # per alternative: how many of its elements are not known to be empty
    ready: list[int] = []
    for rule in range(len(rules.names)):
        waiting.append([])
        for index, alternative in enumerate(rules.defined(rule)):
            waiting[rule].append(len(alternative))
            if not alternative:
                ready.append(rule)
            elif all(isinstance(element, RuleReference) for element in alternative):
                for element in alternative:
                    assert isinstance(element, RuleReference)
                    users[element.rule].append((rule, index))
    empty: set[int] = set()
    while ready:
        rule = ready.pop()
        if rule in empty:
            continue
        empty.add(rule)
        for user, index in users[rule]:
            waiting[user][index] -= 1
            if waiting[user][index] == 0:
                ready.append(user)
    return empty


def _cycle(edges: Sequence[Sequence[int]]) -> int | None:
    """A node that reaches itself, or None."""
    component = _components(edges)
    sizes: dict[int, int] = {}
    for rule in component:
        sizes[rule] = sizes.get(rule, 0) + 1
    for node, targets in enumerate(edges):
        if sizes[component[node]] > 1 or node in targets:
            return node
    return None


def _components(edges: Sequence[Sequence[int]]) -> list[int]:
    """The strongly connected component of each node (Tarjan 1972), without recursion."""
    n = len(edges)
    order, low, component = [-1] * n, [0] * n, [-1] * n
    path: list[int] = []
    counter = 0
    for start in range(n):
        if order[start] >= 0:
            continue
        work: list[tuple[int, Iterator[int]]] = [(start, iter(edges[start]))]
        order[start] = low[start] = counter
        counter += 1
        path.append(start)
        while work:
            node, targets = work[-1]
            for to in targets:
                if order[to] < 0:
                    order[to] = low[to] = counter
                    counter += 1
                    path.append(to)
                    work.append((to, iter(edges[to])))
                    break
                if component[to] < 0:
                    low[node] = min(low[node], order[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    while component[node] < 0:
                        component[path.pop()] = node
    return component
