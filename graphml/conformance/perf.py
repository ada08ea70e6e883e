"""Times of ops at the sizes of real models, with bytes and operations per second.

If a program reports the times of its steps, these are used: on a GPU they are the device's. Judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.backend import Backend, Device, Program, State, StepTime, TimedProgram, no_progress, on_device
from graphml.conformance.cases import Case, resized
from graphml.conformance.fill import blocks, operand
from graphml.conformance.trial import Built, build
from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.op import Array, Sample, plain_bytes
from graphml.ir.ops.rules import ROWS, below, f32, i32
from graphml.ir.shape import Dim, bounds, resolve
from graphml.ir.work import work
from graphml.passes.plan import plan_memory

TOKENS = (1, 512)
FORMATS = ("f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k")
WIDTH = 4096  # replaces dimensions of at least `SMALL`
SMALL = 16
CONTEXT, BLOCK = 2048, 32
LEAST_S, LEAST_RUNS = 0.1, 5


def _last(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Positions at the end of the context."""
    return np.arange(CONTEXT - shape[0], CONTEXT, dtype=np.int32)


def _zeros(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, np.int32)


_CELLS, _HEADS = f32(CONTEXT, 8, 128), f32(ROWS, 8, 128)
_IDS = {2: below(8)}
# Ops whose sizes depend on each other in ways without a rule: a llama of 8 billion parameters.
SHAPES: Mapping[str, Sample] = {
    "attention": Sample(
        (f32(ROWS, 32, 128), _CELLS, _CELLS, i32(ROWS), i32(ROWS), i32(1, CONTEXT // BLOCK)),
        {"scale": 128**-0.5, "block_size": BLOCK},
        {3: _last, 4: _zeros, 5: lambda generator, shape: np.arange(shape[1], dtype=np.int32)[None]},
    ),
    "set_rows": Sample((_CELLS, _HEADS, i32(ROWS)), {"distinct": True}, {2: _last}),
    "rope_set_rows": Sample(
        (_CELLS, _HEADS, f32(ROWS, 64, 2), i32(ROWS)), {"mode": "neox", "distinct": True}, {3: _last}
    ),
    "rope": Sample((f32(ROWS, 32, 128), f32(ROWS, 64, 2)), {"mode": "neox"}),
    "get_rows": Sample((f32(8192, WIDTH), i32(ROWS)), {}, {1: below(8192)}),
    "linear_id": Sample((f32(8, 2048, 2048), f32(ROWS, 2048), i32(ROWS, 2)), {}, _IDS),
    "mul_mat_id": Sample((f32(8, 2048, 2048), f32(ROWS, 2048), i32(ROWS, 2)), {}, _IDS),
    "route_experts": Sample((f32(ROWS, 128),), {"k": 8, "normalise": True, "low": 1e-4}),
    "permute": Sample((f32(ROWS, 32, 128),), {"axes": (1, 0, 2)}),
    "combine_experts": Sample((f32(ROWS, 8, WIDTH), f32(ROWS, 8))),
}


@dataclass(frozen=True)
class Timing:
    """One op at one size.

    seconds: the median of its calls. by_device: by the clock of the steps, not of the caller.
    """

    case: str
    op: str
    format: str
    call: str
    tokens: int
    seconds: float
    n_bytes: int
    flops: int
    by_device: bool
    refused: str | None

    @property
    def bytes_per_s(self) -> float:
        """Bytes that have to be read and written, per second."""
        return self.n_bytes / self.seconds

    @property
    def flops_per_s(self) -> float:
        """Operations of products per second: two per multiply-add."""
        return self.flops / self.seconds


def large(case: Case) -> Case:
    """The case at the size of a real model: by the table, else with its larger dimensions made large."""
    if case.op.name in SHAPES:
        return resized(case, SHAPES[case.op.name])

    def dim(size: Dim) -> Dim:
        return WIDTH if isinstance(size, int) and size >= SMALL else size

    inputs = [replace(kind, shape=tuple(map(dim, kind.shape))) for kind in case.sample.inputs]
    enlarged = replace(case, sample=Sample(tuple(inputs), case.sample.attributes, case.sample.fill))
    try:
        enlarged.results  # noqa: B018 - the shape rule decides whether the sizes still fit
    except GraphError:
        return case
    return enlarged


def perf_cases(some: Sequence[Case]) -> list[Case]:
    """One case for each op and format: the one with most operands and elements, made large.

    Without views, which compute nothing, and ops of weights alone, which run when a model is loaded.
    """
    best: dict[tuple[str, str], Case] = {}
    for case in some:
        if case.inplace < 0 and not case.through and not case.weight and not case.op.view:
            key = case.op.name, case.format
            if key not in best or _size(case) > _size(best[key]):
                best[key] = case
    return [large(case) for case in best.values() if _runs_in_steps(case)]


def _runs_in_steps(case: Case) -> bool:
    """Whether an operand comes with a step."""
    graph, _ = build([case])
    return bool(graph.leaves("input") or graph.leaves("state"))


def _size(case: Case) -> tuple[int, int]:
    return len(case.sample.inputs), sum(int(np.prod(bounds(kind.shape))) for kind in case.sample.inputs)


def measure(backend: Backend, device: Device, some: Sequence[Case]) -> Iterator[Timing]:
    """The time of each case for one token and for many."""
    for case in some:
        for tokens in TOKENS if "T" in case.symbols else TOKENS[:1]:
            yield _measure(backend, device, case.at(tokens), tokens)


def _measure(backend: Backend, device: Device, case: Case, tokens: int) -> Timing:
    graph, (built,) = build([case])
    graph = Graph(graph.nodes, built.outputs)  # nothing else is read back
    generator = np.random.default_rng(0)
    weights = {name: _weight(case, name, generator) for name in graph.leaves("weight")}
    program = device.lower(graph, plan_memory(graph, device), weights, no_progress)
    dims = {**case.symbols, "T": tokens}
    state = device.state(graph, dims)
    for name, node in graph.leaves("input").items():
        value = operand(case, int(name.partition(".")[2]), dims, generator)
        program.inputs[name][tuple(map(slice, resolve(node.shape, dims)))] = value
    for name in graph.leaves("state"):
        state.array(name)[...] = operand(case, int(name.partition(".")[2]), dims, generator)
    seconds, by_device = _time(program, state, dims, built)
    done = work(built.node, {**dims, "C": CONTEXT})
    written = 0 if case.op.is_write else sum(plain_bytes(kind) for kind in case.results)
    return Timing(
        case.name, case.op.name, case.format, case.call, tokens, seconds, done.n_bytes + written, done.flops,
        by_device, on_device(backend, device).refuses(built.node),
    )  # fmt: skip


def _weight(case: Case, name: str, generator: np.random.Generator) -> Array:
    kind = case.sample.inputs[int(name.partition(".")[2])]
    shape = resolve(kind.shape, {})
    if kind.dtype is F32 and len(shape) < 2:
        return operand(case, int(name.partition(".")[2]), {}, generator)
    return blocks(kind.dtype, shape, generator, shape[-1] ** -0.5)


def _time(program: Program, state: State, dims: Mapping[str, int], built: Built) -> tuple[float, bool]:
    """The median seconds of a call, and whether the program itself reported them."""
    program.run(dims, state)
    taken: list[Sequence[StepTime]] = []
    timed = isinstance(program, TimedProgram)
    if isinstance(program, TimedProgram):
        program.time_steps(lambda dims, times: taken.append(times()))
        program.run(dims, state)
        taken.clear()
    calls: list[float] = []
    start = time.perf_counter()
    while len(calls) < LEAST_RUNS or time.perf_counter() - start < LEAST_S:
        begin = time.perf_counter()
        dict(program.run(dims, state))  # outputs may be read lazily
        calls.append(time.perf_counter() - begin)
    if timed:
        calls = [sum(_seconds(step) for step in steps if _is_of(step, built)) for steps in taken]
    return float(np.median(calls)), timed


def _is_of(step: StepTime, built: Built) -> bool:
    """Whether a step belongs to the op: the conversion of its activations is an op of its own."""
    return step.node.op.name != "quantize" or built.node.op.name == "quantize"


def _seconds(step: StepTime) -> float:
    """From the first thread's beginning to the last one's end."""
    ends = [begin + work for begin, work in zip(step.begin_s, step.work_s, strict=True)]
    return max(ends) - min(step.begin_s)
