"""What a graph gives in NumPy, and how near a right backend comes, which the graph itself decides.

Each number is disturbed a little, as rounding does, and the graph is computed again: where outputs move far,
in sums that cancel or choices that turn, a backend may be as far away. Knows references of ops; no backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphml.errors import GraphError
from graphml.fuzz.graphs import Drawn
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import LEAVES

ROUNDING = 2e-6  # of each element's size: approximations of exp and tanh, sums in another order
OF_ROW = 2e-7  # of the largest element of its row
INT8 = 0.5 / 127  # of a row's largest, where a product with weights in blocks may round
RUNS = 3
TIMES = 40.0  # how much farther than the disturbed results a right one may be
# Their results move by a whole step, or not at all.
JUMPS = ("cast", "equal", "floor", "less", "less_equal", "round")
LONG = 16  # elements of a row, of which one surely moves as far as it may
LEAST = (1e-5, 1e-6)  # of the largest element of a row, and of any: tails of gelu and softplus


@dataclass(frozen=True)
class Wanted:
    """An output, and how far from it each of its elements may be; NaN where nothing can be said."""

    value: Array
    limit: Array


def wanted(drawn: Drawn) -> dict[str, Wanted]:
    """Of each output of a graph."""
    values: dict[Node, Array] = {}
    clean = run(drawn.graph, drawn.arrays(), values=values)
    generator = np.random.default_rng(drawn.number)
    far = {name: np.zeros(value.shape) for name, value in clean.items()}
    with np.errstate(all="ignore"):
        for _ in range(RUNS):
            try:
                disturbed = run(drawn.graph, drawn.arrays(), generator, clean=values)
            except GraphError:  # a disturbed value is NaN, which formats refuse
                disturbed = {name: np.full(value.shape, np.nan) for name, value in clean.items()}
            for name, value in disturbed.items():
                away = np.abs(value.astype(np.float64) - clean[name])
                far[name] = np.where(np.isfinite(away), np.maximum(far[name], away), np.nan)
        return {name: Wanted(value, _limit(value, far[name])) for name, value in clean.items()}


def _limit(value: Array, far: Array) -> Array:
    """By rows: each element may move as far as the one that moves most. Of short rows by all of them."""
    size = np.abs(value.astype(np.float64))
    axis = -1 if value.ndim and value.shape[-1] >= LONG else None
    most, largest = (of.max(axis=axis, keepdims=True) for of in (far, size))
    return np.broadcast_to(TIMES * most + LEAST[0] * largest + LEAST[1], value.shape)


def run(
    graph: Graph,
    arrays: Mapping[str, Array],
    disturb: np.random.Generator | None = None,
    values: dict[Node, Array] | None = None,
    clean: Mapping[Node, Array] | None = None,
) -> dict[str, Array]:
    """The outputs, of an array for each leaf; states are changed in place. disturb: each node's result is.

    values: gets those of all nodes. clean: those of an undisturbed run: operands of an op that jumps are
    as far from these as a right backend may be, so that a jump near by is seen.
    """
    values = {} if values is None else values
    for node in graph.nodes:
        if node.op in LEAVES:
            held = arrays[node.name]
            values[node] = held if disturb is None or node.dtype is not F32 else _disturbed(held, disturb)
            continue
        operands: Mapping[Node, Array] = values
        if disturb is not None and _multiplies_blocks(node):
            operands = {**values, node.inputs[1]: _rounded(values[node.inputs[1]], disturb)}
        if clean is not None and node.op.name in JUMPS:
            operands = {source: _farther(values[source], clean[source]) for source in node.inputs}
        with np.errstate(all="ignore"):
            value = evaluate(node, operands)
        if disturb is not None and node.dtype is F32 and not node.op.view and not node.op.is_write:
            value = _disturbed(value, disturb)
        values[node] = value
    return {name: np.array(values[node]) for name, node in graph.outputs.items()}


def _multiplies_blocks(node: Node) -> bool:
    """A product whose weights are of a format: in NumPy they reach it through `dequantize`."""
    return node.op.name in ("mul_mat", "mul_mat_id") and node.inputs[0].op.name == "dequantize"


def _rounded(value: Array, generator: np.random.Generator) -> Array:
    most = np.abs(value).max(axis=-1, keepdims=True)
    return np.asarray(value + INT8 * most * generator.uniform(-1, 1, value.shape), np.float32)


def _farther(value: Array, clean: Array) -> Array:
    """A value as many times as far from the undisturbed one as a right result may be; whole numbers as is."""
    if value.dtype.kind != "f":
        return value
    with np.errstate(all="ignore"):
        moved = np.asarray(clean + np.float32(TIMES) * (value - clean), np.float32)
    return np.where(np.isfinite(moved), moved, value)


def _disturbed(value: Array, generator: np.random.Generator) -> Array:
    size = np.abs(value)
    most = size.max(axis=-1, keepdims=True) if value.size else size
    noise = ROUNDING * size + OF_ROW * np.where(np.isfinite(most), most, 0.0)
    return np.asarray(value + noise * generator.uniform(-1, 1, value.shape), np.float32)


def differs(got: Array, want: Wanted) -> str:
    """Where a result is too far from what is wanted; "" if it is nowhere."""
    value, limit = want.value, want.limit
    if got.shape != value.shape:
        return f"shape {list(got.shape)}, wanted {list(value.shape)}"
    close = got == value
    if value.dtype.kind == "f":
        with np.errstate(all="ignore"):
            near = np.abs(got.astype(np.float64) - value) <= limit
        close |= near | np.isnan(limit) | (np.isnan(got) & np.isnan(value))
    wrong = np.argwhere(~close)
    if not len(wrong):
        return ""
    at = tuple(int(i) for i in wrong[0])
    return f"{len(wrong)} of {value.size} elements, the first at {list(at)}: {got[at]}, wanted {value[at]}"
