"""Graphs for tests: samples of ops as graphs with arrays to run them, and random graphs made of samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from graphml.ir.builder import complete
from graphml.ir.fused import as_outputs
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Attributes, Op, Sample, Type
from graphml.ir.ops import table
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.ops.linear import quantize
from graphml.ir.shape import Symbol, resolve
from graphml.passes.fusion import all_ops


def sampled(ops: Mapping[str, Op]) -> list[tuple[Op, Sample]]:
    """Every op with each of its samples."""
    return [(op, sample) for op in ops.values() if op not in LEAVES for sample in op.samples()]


def sample_ids(pairs: list[tuple[Op, Sample]]) -> list[str]:
    """Names of tests for `sampled`."""
    seen: dict[str, int] = {}
    names = []
    for op, _ in pairs:
        seen[op.name] = seen.get(op.name, -1) + 1
        names.append(f"{op.name}-{seen[op.name]}")
    return names


PLAIN = sampled(table())
ALL = sampled(all_ops())
# Values of random graphs may be infinite, which these refuse.
QUANTIZING = frozenset(op.name for op, _ in ALL if op.name.split("_")[-1] == "quantize")


def full_attributes(op: Op, sample: Sample) -> Attributes:
    """The sample's attributes with the op's defaults."""
    return complete(op, sample.attributes)


def largest(types: Collection[Type]) -> dict[str, int]:
    """The bound of every symbol in the types."""
    return {dim.name: dim.bound for kind in types for dim in kind.shape if isinstance(dim, Symbol)}


def array_of(kind: Type, dims: Mapping[str, int], generator: np.random.Generator) -> Array:
    """Random values of a type: normal numbers, as the dtype is held in NumPy."""
    shape = resolve(kind.shape, dims)
    if kind.dtype.numpy is not None and kind.dtype.numpy.kind == "i":
        return np.zeros(shape, kind.dtype.numpy)
    values = generator.standard_normal(shape).astype(np.float32)
    if kind.dtype.name == "f32":
        return values
    assert quantize.reference is not None
    return quantize.reference([values], {"dtype": kind.dtype.name})


def arrays_of(sample: Sample, dims: Mapping[str, int], seed: int = 0) -> list[Array]:
    """Arrays for the inputs of a sample."""
    generator = np.random.default_rng(seed)
    arrays = []
    for i, kind in enumerate(sample.inputs):
        make = sample.fill.get(i)
        shape = resolve(kind.shape, dims)
        arrays.append(make(generator, shape) if make else array_of(kind, dims, generator))
    return arrays


@dataclass
class Recipe:
    """A graph and how to make arrays for its leaves."""

    graph: Graph
    fills: dict[str, tuple[Sample, int]] = field(default_factory=dict)

    def arrays(self, dims: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Array]:
        """An array for every leaf."""
        generator = np.random.default_rng(seed)
        sizes = {name: symbol.bound for name, symbol in self.graph.symbols().items()} | dict(dims or {})
        arrays = {}
        for node in self.graph.nodes:
            if node.op not in LEAVES:
                continue
            sample, i = self.fills[node.name]
            make, shape = sample.fill.get(i), resolve(node.shape, sizes)
            arrays[node.name] = make(generator, shape) if make else array_of(node.type, sizes, generator)
        return arrays


def leaf_for(g: Builder, op: Op, sample: Sample, i: int, name: str) -> Node:
    """A leaf for the input i of a sample: a state where the op writes it, else an input."""
    kind = sample.inputs[i]
    return (g.state if op.writes == i else g.input)(name, kind.dtype, kind.shape)


def sample_graph(op: Op, sample: Sample) -> Recipe:
    """A graph of one node, the op applied to the leaves `operand_0`, ..., and what reads its results.

    The outputs are called like those of a decomposition: `result`, or `result_0`, ...
    """
    g = Builder()
    leaves = [leaf_for(g, op, sample, i, f"operand_{i}") for i in range(len(sample.inputs))]
    node = g.call(op, *leaves, **sample.attributes)
    graph = g.finish(**as_outputs(g.results(node), bool(node.type.parts)))
    return Recipe(graph, {leaf.name: (sample, i) for i, leaf in enumerate(leaves)})


leaf_names = st.text(min_size=1, max_size=12)


@st.composite
def random_graphs(
    draw: st.DrawFn,
    without: Collection[str] = (),
    odd_names: bool = False,
    only: Collection[Op] | None = None,
    weights: bool = False,
) -> Recipe:
    """Up to a dozen sampled ops, each reading earlier values where types fit, else leaves of its own.

    weights: leaves without a symbolic dimension are weights, as in a model.
    """
    pairs = [pair for pair in ALL if pair[0].name not in without and (only is None or pair[0] in only)]
    g, fills = Builder(), {}
    made: list[Node] = []
    for number, index in enumerate(draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=12))):
        op, sample = pairs[index]
        operands = []
        for i, kind in enumerate(sample.inputs):
            fitting = [node for node in made if node.type == kind] if i not in sample.fill else []
            chosen = draw(st.integers(-1, len(fitting) - 1)) if op.writes != i else -1
            if chosen >= 0:
                operands.append(fitting[chosen])
                continue
            name = f"{draw(leaf_names)}{number}.{i}" if odd_names else f"leaf_{number}_{i}"
            fixed = weights and op.writes != i and not largest([kind])
            leaf = g.weight(name, kind.dtype, kind.shape) if fixed else leaf_for(g, op, sample, i, name)
            fills[leaf.name] = sample, i
            operands.append(leaf)
        with g.scope(f"part {number}") if odd_names else g.scope(f"part_{number}"):
            made += g.results(g.call(op, *operands, **sample.attributes))
    wanted = draw(st.sets(st.integers(0, len(made) - 1), min_size=1, max_size=3))
    return Recipe(g.finish(**{f"out_{i}": made[i] for i in sorted(wanted)}), fills)
