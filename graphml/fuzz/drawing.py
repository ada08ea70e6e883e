"""A graph that is being drawn: its builder, the values so far, and earlier values as operands.

Each node is computed in NumPy as it is made; what is not finite or far from 1 is taken back, because a
difference between backends would say nothing there. Knows the builder and the references of ops; not which
ops are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np

from graphml.conformance.fill import blocks
from graphml.errors import GraphmlError
from graphml.fuzz.feed import random_feed
from graphml.ir.dtype import F32, dtype
from graphml.ir.interpreter import evaluate
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.ops.linear import encode
from graphml.ir.shape import Dim, Shape, Symbol, bounds

LARGEST = 1e3  # of any value
TRIES = 12  # of an operand, or of a node


class Drawing:
    """What a number decides, in order. leaves: arrays of all leaves but the step's. pool: operands so far."""

    def __init__(self, number: int) -> None:
        self.choose, self.numbers = random.Random(number), np.random.default_rng(number)
        self.in_steps = self.choose.random() < 0.5
        self.feed = random_feed(self.choose, self.numbers)
        at = self.feed
        kinds = self.choose.choice(("f32", "f16", "q8_0", "q8_0/f16"))
        self.g = Builder(
            at.n_tokens, at.n_tokens, at.n_sequences, at.n_cells, at.block_size, kinds, windows=False
        )
        self.values: dict[Node, Array] = {}
        self.leaves: dict[str, Array] = {}
        self.pool: list[Node] = []

    def input(self, *row: int) -> Node:
        """A new input f32 [T, *row]."""
        leaf = self.g.input(f"input_{len(self.leaves)}", F32, (self.g.n_tokens, *row))
        self.pool.append(self.hold(leaf, self.normal(bounds(leaf.shape))))
        return leaf

    def weight(self, shape: Shape, kind: str = "f32") -> Node:
        """A new weight of a dtype, with rows of a length near 1."""
        node, sizes = self.g.weight(f"weight_{len(self.leaves)}", dtype(kind), shape), bounds(shape)
        scale = sizes[-1] ** -0.5 if len(sizes) > 1 else 1.0
        if node.dtype.is_format:
            return self.hold(node, blocks(node.dtype, sizes, self.numbers, scale))
        return self.hold(node, encode(np.float32(scale) * self.normal(sizes), node.dtype))

    def hold(self, leaf: Node, array: Array) -> Node:
        """A leaf has this array; a state is changed while the graph is drawn, in a copy."""
        self.leaves[leaf.name], self.values[leaf] = array, array.copy()
        return leaf

    def normal(self, shape: Sequence[int]) -> Array:
        """Normal numbers, f32."""
        return self.numbers.standard_normal(tuple(shape)).astype(np.float32)

    def take(self, make: Callable[[], Node | Iterable[Node]]) -> Sequence[Node]:
        """What a call of the builder makes, where it fits and its numbers are of use; else nothing."""
        before = set(self.g.nodes)
        try:
            output = make()
            results = [output] if isinstance(output, Node) else list(output)
            kept = self._compute()
        except GraphmlError:
            results, kept = [], False
        if not kept:
            for node in [node for node in self.g.nodes if node not in before and node.op not in LEAVES]:
                del self.g.nodes[node]
            return []
        self.pool += [node for node in results if node.dtype is F32 and self.has_rows(node)]
        return results

    def _compute(self) -> bool:
        """Whether all nodes that are new have numbers of use."""
        for node in [node for node in self.g.nodes if node not in self.values]:
            if node.op in LEAVES:
                self._compute_leaf(node)
                continue
            with np.errstate(all="ignore"):
                value = self.values[node] = evaluate(node, self.values)
            for part in value if node.type.parts else (value,):
                if part.dtype.kind == "f" and not (np.abs(part) < LARGEST).all():
                    del self.values[node]
                    return False
        return True

    def _compute_leaf(self, leaf: Node) -> None:
        if leaf.name in self.feed.inputs:
            self.values[leaf] = self.feed.inputs[leaf.name]
        else:
            self.hold(leaf, self.feed.state(leaf, self.numbers))

    def any(self, fits: Callable[[Node], bool] = lambda node: True) -> Node | None:
        """An earlier value, later ones more often."""
        some = [node for node in self.pool if fits(node)]
        return some[max(self.choose.randrange(len(some)), self.choose.randrange(len(some)))] if some else None

    def wide(self, *row: int) -> Node:
        """A value [T, *row]: an earlier one, a product of one, or an input."""
        width = prod(row)
        chosen = self.any(lambda node: prod(bounds(node.shape)[1:]) == width)
        x = self.any(lambda node: len(node.shape) == 2)
        if x is not None and (chosen is None or self.choose.random() < 0.3):
            weight = self.weight((width, *x.shape[1:]))
            product = self.take(lambda: self.g.mul_mat(weight, x))
            chosen = product[0] if product else chosen
        if chosen is None:
            return self.input(*row)
        if chosen.shape[1:] == row:
            return chosen
        wanted = chosen
        seen = self.take(lambda: self.g.reshape(wanted, *row))
        return seen[0] if seen else self.input(*row)

    def operand(self, kind: Type, sizes: dict[Dim, Dim], chosen: Sequence[Node]) -> Node | None:
        """A value for an operand of a sample; None where it wants indices.

        sizes: what the dimensions of the sample are here, as the operands before have decided.
        """
        if kind.dtype is not F32:
            return None
        if not (kind.shape and isinstance(kind.shape[0], Symbol)):
            return self.weight(tuple(sizes.get(dim, dim) for dim in kind.shape))
        rows = [node for node in chosen if self.has_rows(node)]
        if rows and self.choose.random() < 0.3 and _agree(kind, rows[0], sizes):
            return rows[0]
        for _ in range(TRIES):
            node = self.any(lambda node: len(node.shape) == len(kind.shape))
            if node is not None and _agree(kind, node, sizes):
                return node
        return self.input(*bounds(tuple(sizes.get(dim, dim) for dim in kind.shape[1:])))

    def has_rows(self, node: Node) -> bool:
        """Whether a value has a row for each token."""
        return len(node.shape) > 1 and node.shape[0] == self.g.n_tokens


def _agree(kind: Type, node: Node, sizes: dict[Dim, Dim]) -> bool:
    """Whether a value may be an operand of a sample; its sizes are then those of the other operands."""
    if len(node.shape) != len(kind.shape):
        return False
    more: dict[Dim, Dim] = {}
    for dim, size in zip(kind.shape[1:], node.shape[1:], strict=True):
        if sizes.get(dim, more.get(dim, size)) != size:
            return False
        more[dim] = size
    sizes.update(more)
    return True
