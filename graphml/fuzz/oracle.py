"""What a graph gives in NumPy, and how near a right backend comes, which the graph itself decides.

Each number is disturbed a little, as rounding does, and the graph is computed again: where outputs move far,
in sums that cancel or choices that turn, a backend may be as far away. Knows references of ops; no backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphml.errors import GraphError
from graphml.fuzz.graphs import DrawnGraph
from graphml.inspect.compare.tolerances import BF16_STEP, rounds_to_bf16
from graphml.ir.dtype import F32, I32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import LEAVES

ROUNDING = 2e-6  # of each element's size: approximations of exp and tanh, sums in another order
OF_ROW = 2e-7  # of the largest element of its row
FLOOR = 2e-8  # of any: where gelu and softplus end, nothing is left of what cancels
INT8 = 0.5 / 127  # of a row's largest, where a product with weights in blocks may round
RUNS = 3
MORE_RUNS = 24  # before a difference is told
TIMES = 40.0  # how much farther than the disturbed results a right one may be
CHOSEN = 2.0  # the same where only what a state or a product of fewer bits holds is rounded either way
F16 = 2.0**-11  # of a number's size, what rounding to float16 moves it at most
LONG = 16  # elements of a row, of which one surely moves as far as it may
_STEPS = frozenset({"cast", "equal", "floor", "less", "less_equal", "round"})
_EXACT = _STEPS | {"maximum", "minimum", "max_rows", "min_rows", "where", "relu", "clamp", "neg",
                   "abs", "dequantize"}  # fmt: skip
LEAST = (1e-5, 1e-6)  # of the largest element of a row, and of any: tails of gelu and softplus


@dataclass(frozen=True)
class WantedOutput:
    """An output, and how far from it each of its elements may be; NaN where nothing can be said."""

    value: Array
    limit: Array


@dataclass(frozen=True)
class Noise:
    """How a run is disturbed. clean: the values of an undisturbed one, so that a step near by is seen.

    chosen_alone: only what is rounded where a state keeps it, or for attention in bfloat16.
    """

    generator: np.random.Generator
    clean: Mapping[Node, Array]
    chosen_alone: bool


def wanted(drawn: DrawnGraph, runs: int = RUNS) -> dict[str, WantedOutput]:
    """Of each output of a graph. runs: how often it is disturbed."""
    values: dict[Node, Array] = {}
    clean = run(drawn.graph, drawn.arrays(), values=values)
    generator = np.random.default_rng(drawn.number)
    far = {name: np.zeros(value.shape) for name, value in clean.items()}
    rounds = any(_rounds_either_way(node) for node in drawn.graph.nodes)
    with np.errstate(all="ignore"):
        for chosen_alone in [False] * runs + [True] * (rounds * runs // RUNS):
            try:
                disturbed = run(drawn.graph, drawn.arrays(), Noise(generator, values, chosen_alone))
            except GraphError:  # a disturbed value is NaN, which formats refuse
                disturbed = {name: np.full(value.shape, np.nan) for name, value in clean.items()}
            for name, value in disturbed.items():
                away = np.abs(value.astype(np.float64) - clean[name]) * (CHOSEN if chosen_alone else TIMES)
                far[name] = np.where(np.isfinite(away), np.maximum(far[name], away), np.nan)
        return {name: WantedOutput(value, _limit(value, far[name])) for name, value in clean.items()}


def _limit(value: Array, far: Array) -> Array:
    """By rows: each element may move as far as the one that moves most. Of short rows by all of them."""
    size = np.abs(value.astype(np.float64))
    axis = -1 if value.ndim and value.shape[-1] >= LONG else None
    most, largest = (of.max(axis=axis, keepdims=True) for of in (far, size))
    return np.broadcast_to(most + LEAST[0] * largest + LEAST[1], value.shape)


def run(
    graph: Graph,
    arrays: Mapping[str, Array],
    noise: Noise | None = None,
    values: dict[Node, Array] | None = None,
) -> dict[str, Array]:
    """The outputs, of an array for each leaf; states are changed in place. values: gets all nodes."""
    values = {} if values is None else values
    for node in graph.nodes:
        if node.op in LEAVES:
            value, operands = arrays[node.name], values
        else:
            operands = values if noise is None else _disturbed_operands(node, values, noise)
            with np.errstate(all="ignore"):
                value = evaluate(node, operands)
        if noise is not None and not noise.chosen_alone and node.dtype is F32 and not _is_exact(node):
            value = _disturbed(value, noise.generator)
            if node.op not in LEAVES:
                value = _perhaps_nothing(value, noise.clean[node], noise.generator)
        if noise is not None and noise.chosen_alone and rounds_to_bf16(node):  # values and weights
            value = _rounded(value, noise.generator, BF16_STEP)
        values[node] = value
    return {name: np.array(values[node]) for name, node in graph.outputs.items()}


def _disturbed_operands(node: Node, values: dict[Node, Array], noise: Noise) -> dict[Node, Array]:
    if node.op.name in _STEPS and not noise.chosen_alone:
        moved = {source: _farther(values[source], noise.clean[source]) for source in node.inputs}
        return _perhaps_equal(node, moved, noise) if node.op.name == "equal" else moved
    if not (_rounds_either_way(node) if noise.chosen_alone else _multiplies_blocks(node)):
        return values
    step = BF16_STEP if rounds_to_bf16(node) else F16 if node.dtype.name == "f16" else INT8
    source = node.inputs[0 if rounds_to_bf16(node) else 1]
    return {**values, source: _rounded(values[source], noise.generator, step)}


def _multiplies_blocks(node: Node) -> bool:
    """A product whose weights are of a format: in NumPy they reach it through `dequantize`."""
    return node.op.name in ("mul_mat", "mul_mat_id") and node.inputs[0].op.name == "dequantize"


def _is_exact(node: Node) -> bool:
    """Whether every backend gives the same bits for the same operands: it moves, compares or chooses."""
    return node.op.view or node.op.family in ("layout", "index") or node.op.name in _EXACT


def _rounds_either_way(node: Node) -> bool:
    return rounds_to_bf16(node) or (node.op.is_write and node.dtype is not F32)


def turned_by_rounding(graph: Graph) -> set[str]:
    """The outputs behind a step function behind a rounded operand: a number beside a step goes either way."""
    rounded: set[Node] = set()
    turned: set[Node] = set()
    for node in graph.nodes:
        if _multiplies_blocks(node) or not rounded.isdisjoint(node.inputs):
            rounded.add(node)
        steps = node.op.name in _STEPS or node.dtype is I32
        if (steps and not rounded.isdisjoint(node.inputs)) or not turned.isdisjoint(node.inputs):
            turned.add(node)
    return {name for name, node in graph.outputs.items() if node in turned}


def _rounded(value: Array, generator: np.random.Generator, step: float) -> Array:
    most = np.abs(value).max(axis=-1, keepdims=True)
    return np.asarray(value + step * most * generator.uniform(-1, 1, value.shape), np.float32)


def _perhaps_equal(node: Node, moved: dict[Node, Array], noise: Noise) -> dict[Node, Array]:
    """Operands that may be equal, by how far they were moved, are so every other time."""
    a, b = node.inputs
    room = np.abs(moved[a] - noise.clean[a]) + np.abs(moved[b] - noise.clean[b])
    meet = (np.abs(moved[a] - moved[b]) <= room) & (noise.generator.random(room.shape) < 0.5)
    return {**moved, a: np.where(meet, moved[b], moved[a])}


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
    noise = ROUNDING * size + OF_ROW * np.where(np.isfinite(most), most, 0.0) + FLOOR
    return np.asarray(value + noise * generator.uniform(-1, 1, value.shape), np.float32)


def _perhaps_nothing(value: Array, clean: Array, generator: np.random.Generator) -> Array:
    """Zero, every other time, where a value moves by its size: by it a quotient is NaN and a mask another."""
    nothing = (np.abs(clean) <= np.abs(value - clean)) & (generator.random(value.shape) < 0.5)
    return np.asarray(np.where(nothing, 0.0, value), np.float32)


def differs(got: Array, want: WantedOutput) -> str:
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
