"""Random valid graphs of the whole language, each from a number: the same graph of a number anywhere.

Ops come from the table with their samples, so that a new op is drawn without a change here; fused ops as what
they are made of, so that fusions have something to do. Operands are earlier values, often one value twice, or
a view of it. Half of the graphs read their texts in steps, with attention and recurrent ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphml.fuzz.drawing import TRIES, Drawing
from graphml.fuzz.feed import Feed
from graphml.ir.builder import complete
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Op, Sample
from graphml.ir.ops.elementwise import add, mul, relu, silu, sub
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.ops.rules import ROWS
from graphml.ir.shape import Dim, Symbol, bounds
from graphml.passes.fusion import all_ops

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
