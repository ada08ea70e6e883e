"""Random valid graphs of the whole language, each from a number: the same graph of a number anywhere.

Ops come from the table with their samples, so that a new op is drawn without a change here; fused ops as what
they are made of, so that fusions have something to do. Operands are earlier values, often one value twice, or
a view of it. Half of the graphs read their texts in steps, with attention and recurrent ops.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from graphml.conformance.fill import blocks
from graphml.errors import GraphmlError
from graphml.fuzz.feed import Feed, random_feed
from graphml.ir.builder import complete
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Op, Sample, Type
from graphml.ir.ops.elementwise import add, mul, relu, silu, sub
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.ops.linear import encode
from graphml.ir.ops.rules import ROWS
from graphml.ir.shape import Dim, Shape, Symbol, bounds
from graphml.passes.fusion import all_ops

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


WIDTHS = (1, 7, 32, 64, 96, 256)
FORMATS = ("f32", "f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k", "iq4_nl")  # of weights of products
_OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {}, {"window": 3}, {"softcap": 20.0}, {"max_bias": 8.0}, {"chunk": 4},
)  # fmt: skip


@dataclass(frozen=True)
class DrawnGraph:
    """A graph and what it runs on.

    leaves: the arrays of weights, states and inputs that are its own. feed: the inputs of a step. in_steps:
    its rows are the same whether the texts are read at once or in several steps.
    """

    number: int
    graph: Graph
    leaves: Mapping[str, Array]
    feed: Feed
    in_steps: bool

    def arrays(self) -> dict[str, Array]:
        """Name -> array of every leaf for one step of all rows; states are copies, which a run may change."""
        states = self.graph.leaves("state")
        own = {name: array.copy() if name in states else array for name, array in self.leaves.items()}
        return {**own, **self.feed.inputs}


def random_graph(number: int) -> DrawnGraph:
    """The graph of a number."""
    drawing = _Graph(number)
    graph = drawing.drawn()
    used = {node.name for node in graph.nodes}
    leaves = {name: array for name, array in drawing.leaves.items() if name in used}
    return DrawnGraph(number, graph, leaves, drawing.feed, drawing.in_steps)


class _Graph(Drawing):
    """What may be drawn."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._layers = 0

    def drawn(self) -> Graph:
        for _ in range(self.choose.randint(1, 3)):
            self.input(self.choose.choice(WIDTHS))
        if self.choose.random() < 0.3:
            table = self.weight((self.feed.n_vocab, 64))
            self.take(lambda: self.g.embed(table, self.g.tokens))
        actions: list[Callable[[], object]] = [self.plain] * 6
        actions += [self.fused] * 3 + [self.product] * 3 + [self.again] * 2
        actions += [self.with_state] * 3 if self.in_steps else [self.of_sample] * 2
        for _ in range(self.choose.randint(2, 16)):
            self.choose.choice(actions)()
        computed = [node for node in self.pool if node.op not in LEAVES] or self.pool
        some = self.choose.sample(computed, min(len(computed), self.choose.randint(1, 3)))
        wanted = {computed[-1], *some}
        return self.g.finish(**{f"out_{i}": node for i, node in enumerate(self.pool) if node in wanted})

    def plain(self) -> None:
        """An op of the table on earlier values."""
        self._apply(lambda op: op.decompose is None)

    def fused(self) -> None:
        """What a fusion replaces, on earlier values."""
        self._apply(lambda op: op.decompose is not None)

    def _apply(self, wanted: Callable[[Op], bool]) -> None:
        ops = [op for op in _ops() if wanted(op) and (not self.in_steps or _is_by_rows(op))]
        for _ in range(TRIES):
            op = self.choose.choice(ops)
            sample = self.choose.choice(op.samples())
            operands = self._operands(op, sample)
            if operands is not None and self.take(_call(self, op, operands, sample)):
                return

    def _operands(self, op: Op, sample: Sample) -> list[Node] | None:
        """Operands like those of a sample, of other widths; None where one is not free to choose."""
        sizes: dict[Dim, Dim] = {}
        chosen: list[Node] = []
        for i, kind in enumerate(sample.inputs):
            bound = i in sample.fill and (kind.dtype is not F32 or op.decompose is not None or _keeps(op))
            node = None if bound else self.operand(kind, sizes, chosen)
            if node is None:
                return None
            chosen.append(node)
        return chosen

    def of_sample(self) -> None:
        """An op with indices or a state, on leaves of its own, as its sample has them."""
        op = self.choose.choice([op for op in _ops() if op.decompose is None and not _is_by_rows(op)])
        sample = self.choose.choice(op.samples())
        nodes = []
        for i, kind in enumerate(sample.inputs):
            shape = tuple(self.g.n_tokens if dim == ROWS else dim for dim in kind.shape)
            leaf = self.g.state if i == op.writes else self.g.input
            fill = sample.fill.get(i)
            numbers = self.normal(bounds(shape)) if fill is None else fill(self.numbers, bounds(shape))
            array = np.asarray(numbers, kind.dtype.numpy)
            nodes.append(self.hold(leaf(f"leaf_{len(self.leaves)}", kind.dtype, shape), array))
        self.take(_call(self, op, nodes, sample))

    def product(self) -> None:
        """A product with weights of some format, perhaps with a bias, perhaps with a residual."""
        x = self.any(lambda node: len(node.shape) == 2)
        if x is None:
            return
        (k,) = bounds(x.shape)[1:]
        kind = self.choose.choice([name for name in FORMATS if k % dtype(name).block_elements == 0])
        weight = self.weight((self.choose.choice((k, *WIDTHS)), k), kind)
        product = self.take(lambda: self.g.mul_mat(weight, x))
        if product and self.choose.random() < 0.3:
            before, bias = product[0], self.weight(weight.shape[:1])
            product = self.take(lambda: self.g.add(before, bias)) or product
        if product and self.choose.random() < 0.5:
            residual = self.any(lambda node: node.type == product[0].type)
            a, b = self.choose.sample([product[0], residual or product[0]], 2)
            self.take(lambda: self.g.add(a, b))

    def again(self) -> None:
        """One value as several operands, itself or through a view."""
        x = self.any()
        if x is None:
            return
        seen = x
        if self.choose.random() < 0.3:
            views = self.take(lambda: self.g.reshape(x, *bounds(x.shape)[1:]))
            seen = views[0] if views else x
        make, of = self.choose.choice((add, mul, sub)), self.choose.choice((None, relu, silu))
        self.take(lambda: self.g.call(make, x if of is None else self.g.call(of, x), seen))

    def with_state(self) -> None:
        """Attention or a recurrent op, each with a state of its own."""
        self._layers += 1
        kinds: list[Callable[[], None]] = [self.attention] * 2
        self.choose.choice([*kinds, self.convolution, self.delta_net, self.memory])()

    def attention(self) -> None:
        """Some queries for a head of keys; the values may be the keys; a second reading of what is kept."""
        choose, layer = self.choose, self._layers
        d, n_head_kv = choose.choice((8, 16, 32, 64)), choose.choice((1, 2))
        n_head = n_head_kv * choose.choice((1, 2, 4))
        q, k = self.wide(n_head, d), self.wide(n_head_kv, d)
        v = k if choose.random() < 0.3 else self.wide(n_head_kv, d)
        if choose.random() < 0.5:
            mode, plain = choose.choice(("norm", "neox")), (q, k)
            rotated = self.take(lambda: [self.g.rope(x, self.g.rope_table(d), mode) for x in plain])
            q, k = rotated or plain
        options = choose.choice(_OPTIONS)
        attention = self.take(lambda: self.g.attend(q, k, v, layer, d**-0.5, **options))
        if attention and not options and choose.random() < 0.3:
            other = self.wide(n_head, d)
            self.take(lambda: self.g.attend(other, None, None, layer, d**-0.5))

    def convolution(self) -> None:
        """A causal convolution, perhaps with a bias."""
        x = self.any(lambda node: len(node.shape) == 2)
        if x is not None:
            (width,) = bounds(x.shape)[1:]
            weight = self.weight((width, 4))
            bias = self.weight((width,)) if self.choose.random() < 0.5 else None
            self.take(lambda: self.g.ssm_conv(x, weight, bias, self._layers))

    def delta_net(self) -> None:
        """The gated delta rule, with factors below 1; perhaps with several updates in each token."""
        g, ((q, k, v), d) = self.g, self._heads(self.choose.choice(((), (), (2,), (3,))))

        def made() -> Node:
            decay, beta = g.sigmoid(g.sum_rows(q)), g.sigmoid(g.sum_rows(v))
            unit_q, unit_k = g.l2_norm(q, 1e-6), g.l2_norm(k, 1e-6)
            return g.gated_delta_net(unit_q, unit_k, v, decay, beta, self._layers, d**-0.5)

        self.take(made)

    def memory(self) -> None:
        """Linear attention."""
        (q, k, v), d = self._heads()
        self.take(lambda: self.g.linear_attention(q, k, v, self._layers, slope=0.5, scale=d**-0.5))

    def _heads(self, updates: tuple[int, ...] = ()) -> tuple[list[Node], int]:
        """Queries, keys and values, and their width; of the last two some for each of the updates."""
        n_head, d = self.choose.choice((1, 2)), self.choose.choice((8, 16))
        return [self.wide(*more, n_head, d) for more in ((), updates, updates)], d


def _call(drawing: Drawing, op: Op, operands: list[Node], sample: Sample) -> Callable[[], Iterable[Node]]:
    attributes: dict[str, Any] = dict(complete(op, sample.attributes))

    def made() -> Iterable[Node]:
        if op.decompose is None:
            return drawing.g.results(drawing.g.call(op, *operands, name=None, **attributes))
        parts = op.decompose(drawing.g, *operands, **attributes)
        return parts if isinstance(parts, tuple) else (parts,)

    return made


def _ops() -> list[Op]:
    """The ops that are drawn, by name: those with samples whose NumPy meaning is that of any step.

    Conversions to 8 bits are the compiler's own, and samplers are of one row.
    """
    ops = [op for _, op in sorted(all_ops().items()) if op not in LEAVES and op.samples()]
    return [op for op in ops if "quantize" not in op.name and not op.name.startswith("sample_")]


def _keeps(op: Op) -> bool:
    return op.writes is not None or bool(op.reads) or op.family in ("attention", "recurrent")


def _is_by_rows(op: Op) -> bool:
    """Whether a row of the result follows from the same rows of the operands alone, and these are numbers."""
    kinds = [(i, kind) for sample in op.samples() for i, kind in enumerate(sample.inputs)]
    if _keeps(op) or any(kind.dtype is not F32 for _, kind in kinds):
        return False
    rows = {i for i, kind in kinds if kind.shape and isinstance(kind.shape[0], Symbol)}
    return op.decompose is not None or rows <= set(op.rowwise)
