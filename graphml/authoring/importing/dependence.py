"""What every node depends on, which nodes all paths to it pass, and the parts of a graph between two nodes.

Knows the graph of a description; nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphml.authoring.importing.aten import MOVES, SIZE_ONLY
from graphml.authoring.importing.description import TracedModule, TracedNode
from graphml.authoring.importing.evaluation import Evaluator, is_ignored, op_name

TOKENS, PARAMETERS, POSITIONS = "tokens", "parameters", "positions"
Kinds = frozenset[str]
LENGTH = 8  # tokens of a text on which constants are looked at


@dataclass(frozen=True, eq=False)
class Dependence:
    """kinds: of each node and input, any of tokens, parameters, positions; none of a constant."""

    description: TracedModule
    kinds: dict[str, Kinds]

    def on_tokens(self, name: str) -> bool:
        """Whether the value depends on which ids are given."""
        return TOKENS in self.kinds[name]

    def is_parameters(self, name: str) -> bool:
        """Whether it is a parameter or computed from parameters and constants alone."""
        return self.kinds[name] == {PARAMETERS}

    def is_positions(self, name: str) -> bool:
        """Whether it depends on the length of the text and on constants alone."""
        return self.kinds[name] == {POSITIONS}

    def is_constant(self, name: str) -> bool:
        """Whether it is always the same."""
        return not self.kinds[name]

    def token_operands(self, name: str) -> list[str]:
        """The operands that depend on the ids."""
        node = self.description.nodes.get(name)
        return [operand for operand in node.operands if self.on_tokens(operand)] if node else []

    def is_mixing(self, name: str) -> bool:
        """Whether the value has a number for each pair of tokens."""
        node = self.description.nodes.get(name)
        if node is not None and node.shape is None and op_name(node) in MOVES:  # several parts
            return self.is_mixing(node.operands[0])
        return bool(
            node and self.on_tokens(name) and sum(isinstance(size, str) for size in node.shape or ()) > 1
        )

    @cached_property
    def needed(self) -> list[TracedNode]:
        """The nodes that depend on the ids and that the logits need, in order."""
        result = self.description.result
        return self.between("", result) if self.on_tokens(result) else []

    @cached_property
    def of_scores(self) -> set[str]:
        """Sums and extremes of each token's row of pairs, and what is made of such alone."""
        of_scores: set[str] = set()
        for node in self.needed:
            operands = self.token_operands(node.name)
            reduces = op_name(node) in ("max", "amax", "sum", "logsumexp") and self.is_mixing(operands[0])
            if reduces or of_scores.issuperset(operands):
                of_scores.add(node.name)
        return of_scores

    @cached_property
    def users(self) -> dict[str, list[str]]:
        """The needed nodes that read each node."""
        users: dict[str, list[str]] = {}
        for node in self.needed:
            for operand in set(node.operands):
                users.setdefault(operand, []).append(node.name)
        return users

    @cached_property
    def dominators(self) -> dict[str, str]:
        """The nearest node through which all that a node learns of the ids has passed."""
        dominator: dict[str, str] = {}
        depth = {name: 0 for name, leaf in self.description.inputs.items() if leaf.kind == "ids"}
        for node in self.needed:
            before = self.token_operands(node.name)
            common = before[0]
            for operand in before[1:]:
                common = self._common(dominator, depth, common, operand)
            dominator[node.name] = common
            depth[node.name] = depth[common] + 1
        return dominator

    @staticmethod
    def _common(above: dict[str, str], depth: dict[str, int], a: str, b: str) -> str:
        while a != b:
            if depth[a] >= depth[b]:
                a = above[a]
            else:
                b = above[b]
        return a

    def chain(self, name: str) -> Iterator[str]:
        """The node's dominators, nearest first, without the ids themselves."""
        while (name := self.dominators.get(name, "")) in self.description.nodes:
            yield name

    def between(self, entry: str, last: str) -> list[TracedNode]:
        """The nodes that depend on the ids from `entry`, which is left out, to `last`."""
        between, stack = set(), [last]
        while stack:
            name = stack.pop()
            if name not in between and name != entry:
                between.add(name)
                stack += self.token_operands(name)
        return [self.description.nodes[name] for name in self.description.nodes if name in between]


def _gathers_equal_numbers(description: TracedModule, node: TracedNode, kinds: dict[str, Kinds]) -> bool:
    """Whether it takes elements of a constant that are all the same: which of them does not matter."""
    source = node.operands[0] if op_name(node) == "gather" else ""
    if not source or kinds[source] - {POSITIONS}:
        return False
    ids = description.with_ids(np.zeros(LENGTH, np.int64))
    return bool(np.ptp(np.asarray(Evaluator(description, ids).value(source))) == 0)


def classed(description: TracedModule) -> Dependence:
    """Class every node."""
    kinds: dict[str, Kinds] = {}
    for name, leaf in description.inputs.items():
        kinds[name] = frozenset({"ids": {TOKENS}, "parameter": {PARAMETERS}}.get(leaf.kind, ()))
    for name, node in description.nodes.items():
        if is_ignored(node):
            kinds[name] = frozenset()
            continue
        classes: set[str] = set()
        for operand in node.operands:
            classes |= kinds[operand]
        if _gathers_equal_numbers(description, node, kinds):
            classes = {POSITIONS}
        elif op_name(node) in SIZE_ONLY:
            size = [operand for operand in node.operands[:1] if kinds[operand] & {TOKENS, POSITIONS}]
            rest = [kinds[operand] for operand in node.operands[1:]]
            classes = ({POSITIONS} if size else set()).union(*rest)
        kinds[name] = frozenset(classes)
    return Dependence(description, kinds)
