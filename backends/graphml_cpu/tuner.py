"""The search of `graphml tune`: every product of a graph, with each value of each parameter, on this machine.

One parameter after the other is tried, all values in turns, so that whatever else the machine does hits them
alike. A value's product must be that of the usual parameters before it is timed, and theirs close to
float64's. What looks better is measured once more against the usual, and kept if it takes at most `_WORTH` of
its time. Knows kernel calls; what is kept where is `graphml_cpu.tuning`'s.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import graphml_quant
import numpy as np

from graphml.backend import Progress, Tuned
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import bounds
from graphml_cpu import tuning
from graphml_cpu.compiler import LoadedKernel, compile_kernels
from graphml_cpu.layouts import FEW_ROWS
from graphml_cpu.lowering import table
from graphml_cpu.lowering.linear import conversion, is_packed
from graphml_cpu.lowering.step import KernelCall, Scratch
from graphml_cpu.runtime.shares import PARTS
from graphml_cpu.runtime.tape import Tape, TapeStep
from graphml_cpu.runtime.workers import Team
from graphml_cpu.state import zeros
from graphml_cpu.tuning import Key

_WORTH = 0.97
_ROUNDS = 7
_CHECK_ROUNDS = 15
_CHECKED_ROWS = 16  # weight rows that are multiplied in float64


@dataclass(frozen=True)
class _CpuProblem:
    """One kernel and shape: its call in the graph, the weight and so many rows of activations for it."""

    key: Key
    step: KernelCall
    weight: Node
    layout: str | None  # what the activations are packed to
    rows: int


def _problems(graphs: Sequence[Graph], threads: int) -> list[_CpuProblem]:
    """Every kernel and shape of the graphs that has parameters, once."""
    by_key: dict[Key, _CpuProblem] = {}
    for node in (node for graph in graphs for node in graph.nodes):
        lowering = table().get(node.op.name)
        if lowering is None or lowering.refuses(node) is not None:
            continue
        for step in lowering.lower(node, threads):
            key, weight, x = tuning.key_of(step, threads), step.arguments.get("w"), step.arguments.get("x")
            if (
                key is not None
                and isinstance(weight, Node)
                and isinstance(x, Node)
                and weight.op is weight_leaf
            ):
                rows = int(np.prod(bounds(x.shape[:-1])))
                layout = x.dtype.name if is_packed(x.dtype) else None
                by_key.setdefault(key, _CpuProblem(key, step, weight, layout, rows))
    return list(by_key.values())


class _CpuBench:
    """A problem's memory, and its product with any parameters."""

    def __init__(self, problem: _CpuProblem, weight: Array, team: Team) -> None:
        self._problem, self._team = problem, team
        self._weight, (_, n, k, _) = weight, problem.key
        self._kept: list[list[Array]] = []
        self.x = np.random.default_rng(k).standard_normal((problem.rows, k)).astype(np.float32)
        self._rows = np.array([problem.rows])
        self._given = _given(problem, self.x, self._rows)
        self.y = np.zeros((problem.rows, n), np.float32)
        scratch = problem.step.arguments["scratch"]
        assert isinstance(scratch, Scratch)
        width = -(-scratch.n_bytes // 4096) * 4096
        self._scratch = zeros(team.n_threads * width).reshape(team.n_threads, width)

    def tape(self, parameters: Mapping[str, int]) -> Tape:
        """The product with some parameters as a program of one step; it keeps its parameter blocks."""
        step = tuning.with_parameters(self._problem.step, parameters)
        kernel = compile_kernels([tuning.tunable(step)])[step.kernel.name]
        blocks = [self._block(kernel, thread) for thread in range(self._team.n_threads)]
        addresses = tuple(block.ctypes.data for block in blocks)
        tape = Tape([TapeStep(kernel.address, addresses, parts=step.parts or PARTS)], self._team.n_threads)
        self._kept.append(blocks)
        return tape

    def _block(self, kernel: LoadedKernel, thread: int) -> Array:
        values: dict[str, float] = {
            name: value
            for name, value in self._problem.step.arguments.items()
            if isinstance(value, int | float)
        }
        values |= {"residual": 0, "bias": 0, "w": self._weight.ctypes.data, "x": self._given.ctypes.data}
        values |= {"y": self.y.ctypes.data, "scratch": self._scratch[thread].ctypes.data}
        return kernel.block(**values, rows=self._rows.ctypes.data)

    def take_rows(self, rows: int) -> None:
        """From now on the first `rows` rows of activations are multiplied."""
        self._rows[0] = rows

    def product(self, tape: Tape) -> Array:
        """What a tape computes."""
        self.y[:] = np.nan
        self._team.run(tape)
        return self.y.copy()

    def seconds(self, tape: Tape) -> float:
        """One call."""
        start = time.perf_counter()
        self._team.run(tape)
        return time.perf_counter() - start


def _given(problem: _CpuProblem, x: Array, rows: Array) -> Array:
    """Activations as the product takes them."""
    if problem.layout is None:
        return x
    ref, stride = conversion(problem.layout), problem.step.arguments["x_stride"]
    assert isinstance(stride, int)
    out = zeros(len(x) * stride)
    packing = compile_kernels([ref])[ref.name]
    packing(packing.block(x=x.ctypes.data, out=out.ctypes.data, k=x.shape[1], rows=rows.ctypes.data))
    return out


def _check_usual(problem: _CpuProblem, weight: Array, x: Array, y: Array) -> None:
    """Refuse to tune a kernel that is wrong to begin with."""
    kind, k = problem.weight.dtype.name, problem.key[2]
    rows = weight.reshape(problem.key[1], -1)[:_CHECKED_ROWS]
    plain = rows if rows.dtype != np.uint8 else _decoded(kind, rows, k)
    wanted = x.astype(np.float64) @ _as_float(kind, plain, k).T
    error = ((y[:, : len(rows)] - wanted) ** 2).sum() / max((wanted**2).sum(), 1e-300)
    if not error < 1e-3:
        raise BackendError(f"{problem.key[0]} {problem.key[1:]}: its product is wrong, NMSE {error:.3g}")


def _decoded(kind: str, rows: Array, k: int) -> Array:
    return graphml_quant.dequantize(graphml_quant.by_name(kind), np.ascontiguousarray(rows), (len(rows), k))


def _as_float(kind: str, rows: Array, k: int) -> Array:
    if kind == "bf16":
        rows = (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return rows.reshape(len(rows), k).astype(np.float64)


def _in_turns(bench: _CpuBench, tapes: Sequence[Tape], rounds: int) -> list[float]:
    """Seconds of each, the median of some rounds; the first round is thrown away."""
    times = [[bench.seconds(tape) for tape in tapes] for _ in range(rounds + 1)][1:]
    return [statistics.median(times_of_tape) for times_of_tape in zip(*times, strict=True)]


def _search(problem: _CpuProblem, weight: Array, team: Team) -> tuple[dict[str, int], float, float]:
    """The best parameters (none: the usual), seconds with the usual and with these."""
    bench = _CpuBench(problem, weight, team)
    usual = bench.tape({})
    wanted = bench.product(usual)
    _check_usual(problem, weight, bench.x, wanted)
    chosen: dict[str, int] = {}
    for name, values in tuning.candidates(tuning.tunable(problem.step)).items():
        if name == "few_rows" or (name == "parts" and team.n_threads == 1):
            continue
        tries = [chosen, *({**chosen, name: value} for value in values)]
        tapes = [bench.tape(parameters) for parameters in tries]
        for parameters, tape in zip(tries, tapes, strict=True):
            product = bench.product(tape)
            if not np.allclose(product, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max())):
                raise BackendError(f"{problem.key[0]} {problem.key[1:]}: another product with {parameters}")
        times = _in_turns(bench, tapes, _ROUNDS)
        best = min(range(len(tries)), key=times.__getitem__)
        if times[best] < _WORTH * times[0]:
            chosen = tries[best]
    before, after = _in_turns(bench, [usual, bench.tape(chosen)], _CHECK_ROUNDS)
    if not (chosen and after < _WORTH * before):
        chosen, after = {}, before
    return _few_rows(problem, bench) | chosen, before, after


def _few_rows(problem: _CpuProblem, bench: _CpuBench) -> dict[str, int]:
    """Up to how many rows a product without panels takes no longer; nothing for the usual number."""
    values = [
        few
        for few in tuning.candidates(tuning.tunable(problem.step)).get("few_rows", ())
        if few <= problem.rows
    ]
    usual = problem.step.arguments.get("few_rows")
    if not values or problem.rows < FEW_ROWS:
        return {}
    best = values[0]
    by_rows, by_panels = bench.tape({"few_rows": values[-1]}), bench.tape({"few_rows": 0})
    for rows in values[1:]:
        bench.take_rows(rows)
        without, panels = _in_turns(bench, [by_rows, by_panels], _ROUNDS)
        if without > panels:
            break
        best = rows
    bench.take_rows(problem.rows)
    return {} if best == usual else {"few_rows": best}


def tune(
    graphs: Sequence[Graph], weights: Mapping[str, Array], team: Team, progress: Progress
) -> list[Tuned]:
    """See `graphml.backend.TunableDevice`."""
    problems = _problems(graphs, team.n_threads)
    results = {}
    tuned = []
    for done, problem in enumerate(problems):
        progress("tune", done, len(problems))
        weight = np.asarray(weights[problem.weight.name])
        parameters, usual_s, tuned_s = _search(problem, weight, team)
        results[problem.key] = {"parameters": parameters, "usual_s": usual_s, "tuned_s": tuned_s}
        kernel, n, k, threads = problem.key
        shape = f"{n} x {k}, {problem.rows} rows, {threads} threads"
        tuned.append(Tuned(kernel, shape, parameters, usual_s, tuned_s))
    progress("tune", len(problems), len(problems))
    tuning.save(results)
    return tuned
