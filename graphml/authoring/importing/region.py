"""A part of a traced graph with one way in, run on values of one's choice; and what it was recognised as.

Catalogue entries (in `entries`) declare what regions are recognised as.

Knows evaluation; nothing of what models are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import Evaluator, op_name, random_parameter

Array = NDArray[Any]
PRODUCTS = frozenset(
    (
        "linear",
        "mm",
        "bmm",
        "matmul",
        "addmm",
        "baddbmm",
        "einsum",
        "embedding",
        "mv",
        "scaled_dot_product_attention",
        "topk",
        "index",
        "sort",
    )
)


@dataclass(frozen=True, eq=False)
class Region:
    """The nodes from `entry` to `last` that depend on the ids; `entry` itself is outside."""

    dependence: Dependence
    entry: str
    last: str

    @cached_property
    def nodes(self) -> list[TracedNode]:
        """In order."""
        return self.dependence.between(self.entry, self.last)

    @cached_property
    def ops(self) -> frozenset[str]:
        """Names of the ops inside."""
        return frozenset(map(op_name, self.nodes))

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Of the entry."""
        return self._shape(self.entry)

    @property
    def shape_last(self) -> tuple[int | str, ...]:
        """Of the last node."""
        return self._shape(self.last)

    def _shape(self, name: str) -> tuple[int | str, ...]:
        return self.dependence.description.nodes[name].shape or ()

    def others(self, choose: Callable[[str], bool]) -> list[str]:
        """Operands from outside, besides the entry, that `choose` accepts."""
        inside = {node.name for node in self.nodes} | {self.entry}
        names = dict.fromkeys(
            operand for node in self.nodes for operand in node.operands if operand not in inside
        )
        return [name for name in names if choose(name)]

    def has_positions(self) -> bool:
        """Whether values of the positions come in, and not just the number of tokens."""
        nodes = self.dependence.description.nodes
        return bool(self.others(lambda name: self.dependence.is_positions(name) and bool(nodes[name].shape)))

    def run(self, x: Array, n_tokens: int) -> Array:
        """The value of the last node, for one of the entry."""
        return run(self.dependence, {self.entry: x}, self.last, n_tokens)

    def random(self, n_tokens: int, seed: int, size: float = 1.0) -> Array:
        """A random value of the entry."""
        shape = concrete(self.shape, n_tokens)
        return np.random.default_rng(seed).standard_normal(shape) * size


def concrete(shape: tuple[int | str, ...], n_tokens: int) -> tuple[int, ...]:
    """The shape for a number of tokens."""
    return tuple(n_tokens if isinstance(size, str) else size for size in shape)


def run(dependence: Dependence, values: Mapping[str, Any], last: str, n_tokens: int) -> Array:
    """The value of a node where others are given, for a text of so many tokens."""
    ids = dependence.description.with_ids(np.zeros(n_tokens, np.int64))
    value = Evaluator(dependence.description, {**ids, **values}, random_parameter).value(last)
    return np.asarray(value)


@dataclass(frozen=True, eq=False)
class Recognised:
    """What a part of the graph computes: the name of graphml's op, of values by role, with numbers.

    entries: role -> node that it reads; weights: role -> node or input that depends on parameters alone;
    rows: of such a weight, where not all; numbers: attributes. last: the node whose value it is.
    """

    op: str
    last: str
    entries: Mapping[str, str]
    weights: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


def same(a: Array, b: Array, limit: float = 1e-9) -> bool:
    """Whether two values agree, relative to their size."""
    if a.shape != b.shape or not np.all(np.isfinite(a)):
        return False
    return bool(np.max(np.abs(a - b), initial=0.0) <= limit * (1e-30 + np.max(np.abs(b), initial=0.0)))


@dataclass(frozen=True)
class CatalogueEntry:
    """looks: whether a region may be one, by its ops and shapes; matches: what it is, after running it."""

    name: str
    looks: Callable[[Region], bool]
    matches: Callable[[Region], Recognised | None]
