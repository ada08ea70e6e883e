"""Runs a random graph in every way that must give the same, and tells the first that does not.

Fused and plain, with a memory plan and with every value kept, as one step and as several, on one thread and
on more. An error of a backend is a difference too: the graph is valid. Knows backends through their contract.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.backend import Backend, Device, State
from graphml.compiler.compile import Compiled, compile_graph
from graphml.compiler.options import CompileOptions
from graphml.errors import GraphError
from graphml.fuzz.graphs import DrawnGraph
from graphml.inspect.compare.tolerances import BF16_STEP, rounds_to_bf16
from graphml.ir import text
from graphml.ir.dtype import F32, I32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import LEAVES, weight_leaf
from graphml.ir.shape import Symbol, resolve
from graphml.ir.verify import verify
from graphml.passes.expand import expand
from graphml.passes.fusion import all_ops

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
        if noise is not None and noise.chosen_alone and rounds_to_bf16(node):  # weights of the softmax
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
    sources = node.inputs[:3] if rounds_to_bf16(node) else node.inputs[1:2]  # queries, keys and values
    numbers = [source for source in sources if values[source].dtype.kind == "f"]  # no blocks of a cache
    return {**values, **{source: _rounded(values[source], noise.generator, step) for source in numbers}}


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


ERROR = "error"


@dataclass(frozen=True)
class WrongResult:
    """What went wrong: on which backend, in which way of running, and what."""

    backend: str
    way: str
    what: str

    @property
    def kind(self) -> tuple[str, str, str]:
        """What a smaller graph must show as well: backend and way, and the type of an error."""
        return self.backend, self.way, self.what.partition(":")[0] if self.way == ERROR else ""


@dataclass(frozen=True)
class CheckedBackend:
    """A backend and its devices, each with another number of threads."""

    backend: Backend
    devices: Sequence[Device]


def check(drawn: DrawnGraph, sides: Sequence[CheckedBackend]) -> WrongResult | None:
    """The first difference; None where there is none. One is looked at again, with a closer judge."""
    seen = next(_differences(drawn, sides, RUNS), None)
    return None if seen is None else next(_differences(drawn, sides, MORE_RUNS), None)


def _differences(drawn: DrawnGraph, sides: Sequence[CheckedBackend], runs: int) -> Iterator[WrongResult]:
    graph = verify(drawn.graph)
    written = text.write(graph)
    if text.write(text.parse(written, all_ops())) != written:
        yield WrongResult("reference", "text", "written and parsed it is another graph")
    want = wanted(drawn, runs)
    if drawn.in_steps:
        yield from _told("reference", "in steps", _in_steps_of_numpy(drawn), want)
    for side in sides:
        yield from _of_side(drawn, side, want, runs)


def _of_side(
    drawn: DrawnGraph, side: CheckedBackend, want: Mapping[str, WantedOutput], runs: int
) -> Iterator[WrongResult]:
    choose, graph = random.Random(drawn.number), drawn.graph
    device = choose.choice(side.devices)
    every = [node for node in graph.nodes if node.inputs and node.dtype is F32 and not node.op.is_write]
    kept = CompileOptions("none", keep=tuple(node.name for node in every))
    ways = {"fused": CompileOptions(), **choose.choice(({"plain": CompileOptions("none")}, {"kept": kept}))}
    for way, options in ways.items():
        try:
            compiled = _compiled(drawn, side.backend, device, options)
            exact = want
            if any(node.dtype.is_format for node in compiled.graph.nodes if node.op is not weight_leaf):
                # Rounded to 8 bits as NumPy does it; how far that moves the outputs is judged too.
                exact = wanted(replace(drawn, graph=expand(compiled.graph)), runs)
                turned = turned_by_rounding(graph)
                rounded = {name: value.value for name, value in exact.items() if name not in turned}
                yield from _told("reference", f"{way}, in 8 bits", rounded, want)
            got = _whole(compiled, drawn, device)
            stepped = _in_steps(compiled, drawn, device, choose) if drawn.in_steps and way == "fused" else {}
        except Exception as error:
            yield WrongResult(side.backend.name, ERROR, _error(way, error))
            continue
        yield from _told(side.backend.name, way, got, exact)
        yield from _told(side.backend.name, f"{way} in steps", stepped, exact)


def _error(way: str, error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({way}; {last.filename}:{last.lineno})"


def _told(
    backend: str, way: str, got: Mapping[str, Array], want: Mapping[str, WantedOutput]
) -> Iterator[WrongResult]:
    for name in want:
        problem = differs(got[name], want[name]) if name in got else ""
        if problem:
            yield WrongResult(backend, way, f"{name}: {problem}")


def _compiled(drawn: DrawnGraph, backend: Backend, device: Device, options: CompileOptions) -> Compiled:
    weights = {name: drawn.leaves[name] for name in drawn.graph.leaves("weight")}
    return compile_graph(drawn.graph, backend, device, weights, options=options)


def _whole(compiled: Compiled, drawn: DrawnGraph, device: Device) -> dict[str, Array]:
    return _step(compiled, _state(compiled, drawn, device), drawn.feed.dims, drawn.arrays())


def _in_steps(
    compiled: Compiled, drawn: DrawnGraph, device: Device, choose: random.Random
) -> dict[str, Array]:
    """The rows of all outputs, computed in several steps."""
    state, parts = _state(compiled, drawn, device), []
    for rows in drawn.feed.splits(choose):
        dims = {**drawn.feed.dims, "T": len(rows), "O": len(rows)}
        parts.append(_step(compiled, state, dims, _inputs(drawn, rows)))
    return _joined(parts, drawn)


def _in_steps_of_numpy(drawn: DrawnGraph) -> dict[str, Array]:
    """The same in NumPy."""
    arrays, splits = drawn.arrays(), drawn.feed.splits(random.Random(drawn.number))
    return _joined([run(drawn.graph, {**arrays, **_inputs(drawn, rows)}) for rows in splits], drawn)


def _inputs(drawn: DrawnGraph, rows: range) -> dict[str, Array]:
    """The inputs of some rows as a step."""
    own = {
        name: drawn.leaves[name][rows.start : rows.stop] if _has_rows(node.shape) else drawn.leaves[name]
        for name, node in drawn.graph.leaves("input").items()
        if name in drawn.leaves
    }
    return {**own, **drawn.feed.of_rows(rows)}


def _state(compiled: Compiled, drawn: DrawnGraph, device: Device) -> State:
    state = device.state(compiled.graph, drawn.feed.dims)
    for name in compiled.graph.leaves("state"):
        state.array(name)[...] = drawn.leaves[name]
    return state


def _step(
    compiled: Compiled, state: State, dims: Mapping[str, int], values: Mapping[str, Array]
) -> dict[str, Array]:
    symbols = compiled.graph.symbols()
    known = {name: dims.get(name, symbol.bound) for name, symbol in symbols.items()}
    for name, node in compiled.graph.leaves("input").items():
        array = compiled.program.inputs[name]
        if array.dtype.kind == "f":
            array[...] = np.nan  # what lies behind the rows of a step has no influence
        array[tuple(map(slice, resolve(node.shape, known)))] = values[name]
    return {name: np.array(array) for name, array in compiled.program.run(known, state).items()}


def _joined(parts: Sequence[Mapping[str, Array]], drawn: DrawnGraph) -> dict[str, Array]:
    outputs = [name for name, node in drawn.graph.outputs.items() if _has_rows(node.shape)]
    return {name: np.concatenate([part[name] for part in parts]) for name in outputs}


def _has_rows(shape: Sequence[object]) -> bool:
    return bool(shape) and isinstance(shape[0], Symbol) and shape[0].name in ("T", "O")
