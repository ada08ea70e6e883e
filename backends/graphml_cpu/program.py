"""A planned graph -> a tape: addresses, parameter blocks, barriers only where threads depend on each other.

Nodes without a kernel run in NumPy between two stretches of tape.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from graphml.backend import Plan, Progress, State, TakeTimes
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import bounds, resolve
from graphml_cpu.array_kernels.reference import ArrayKernelRef
from graphml_cpu.blocks import CpuPlaces, fill_blocks
from graphml_cpu.compiler import KernelRef, LoadedKernel, compile_kernels
from graphml_cpu.lowering.step import AnyKernelRef, KernelCall
from graphml_cpu.node_support import CpuNodeSupport
from graphml_cpu.own_rows import Part, own_rows
from graphml_cpu.runtime.hazards import barriers, latest, made_before, touched_by
from graphml_cpu.runtime.tape import Tape, TapeStep
from graphml_cpu.runtime.timing import CpuTimer
from graphml_cpu.runtime.workers import Team
from graphml_cpu.step_costs import shares_by_cost
from graphml_cpu.tuning import UNTUNED, CpuTuning


@dataclass(frozen=True)
class _ProgramPart:
    """A stretch of tape or one node worked out in NumPy: how it runs, and how it runs timed."""

    run: Callable[[Mapping[str, int]], None]
    timed: Callable[[CpuTimer, Mapping[str, int]], None]


class CpuProgram:
    """See `graphml.backend.Program`. One run at a time; several states (sessions) may take turns."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        weights: Mapping[str, Array],
        team: Team,
        arena: Array,
        progress: Progress,
        support: CpuNodeSupport,
        tuning: CpuTuning = UNTUNED,
        one_order: bool = False,
    ) -> None:
        self._graph, self._team, self._arena = graph, team, arena
        constants = _fold(graph, weights, support)
        parts = _lowered(graph, constants, support, tuning, team.n_threads, one_order)
        own = own_rows(graph, plan, parts, support)
        self.places = CpuPlaces(graph, plan, weights, constants, arena, team.n_threads, support, own)
        self.fallbacks: list[Node] = []
        self.tapes: list[Tape] = []
        self._lock = threading.Lock()
        self._parts: list[_ProgramPart] = []
        self._timer: CpuTimer | None = None
        self._outputs: dict[str, Array] = {}
        self._viewed: tuple[State, dict[str, int]] | None = None  # whose outputs those are
        self._keep: list[object] = [constants, weights]
        self.inputs: dict[str, Array] = {
            name: self.places.view(node, bounds(node.shape)) for name, node in graph.leaves("input").items()
        }
        self._compile(parts, progress)

    def run(self, dims: Mapping[str, int], state: State) -> dict[str, Array]:
        """Run one step; see `graphml.backend.Program`."""
        with self._lock:
            self.places.bind(dims, state)
            if self._timer is None:
                for part in self._parts:
                    part.run(dims)
            else:
                self._run_timed(self._timer, dims)
            if self._viewed != (state, dims):
                self._outputs = {
                    name: self.places.view(node, resolve(node.shape, dims))
                    for name, node in self._graph.outputs.items()
                }
                self._viewed = state, dict(dims)
            return dict(self._outputs)

    def time_steps(self, take: TakeTimes | None) -> None:
        """See `graphml.backend.TimedProgram`. Timed runs walk tapes of their own, made at the first."""
        with self._lock:
            self._timer = None if take is None else CpuTimer(take, self._team)

    def _run_timed(self, timer: CpuTimer, dims: Mapping[str, int]) -> None:
        timer.begin()
        for part in self._parts:
            part.timed(timer, dims)
        timer.finish(dims)

    def _compile(self, parts: Sequence[Part], progress: Progress) -> None:
        calls = [call for part in parts if not isinstance(part, Node) for _, call in part]
        self.places.reserve_scratch(calls)
        kernels = _compiled({call.kernel for call in calls}, progress)
        for part in parts:
            if isinstance(part, Node):
                self.fallbacks.append(part)
                self._parts.append(self._fallback(part))
            elif part:
                self._parts.append(self._tape(part, kernels))

    def _tape(
        self, steps: Sequence[tuple[Node, KernelCall]], kernels: Mapping[AnyKernelRef, LoadedKernel]
    ) -> _ProgramPart:
        touched = [touched_by(step, self.places) for _, step in steps]
        order = latest(touched)
        steps, touched = [steps[i] for i in order], [touched[i] for i in order]
        after = barriers(touched)
        since = made_before(touched, after)
        whole = [not step.split and self.places.is_replicated(node) for node, step in steps]
        costs = [(node, alone) for (node, _), alone in zip(steps, whole, strict=True)]
        shares = shares_by_cost(costs, after, self._team.n_threads)
        taped, over_arrays = [], dict[int, Node]()
        for (node, step), alone, barrier, first, share in zip(
            steps, whole, after, since, shares, strict=True
        ):
            kernel = kernels[step.kernel]
            blocks = fill_blocks(kernel, step, self.places)
            self._keep.append(blocks)
            shared = blocks[0].ctypes.data
            if isinstance(step.kernel, ArrayKernelRef):
                over_arrays |= dict.fromkeys((block.ctypes.data for block in blocks), node)
            addresses = tuple(shared if block is blocks[0] else block.ctypes.data for block in blocks)
            taped.append(
                TapeStep(
                    kernel.address,
                    addresses,
                    barrier,
                    replicated=alone,
                    parts=step.parts or share.parts,
                    owners=share.owners,
                    since=first,
                    name=node.name,
                )
            )
        # The parts know nothing of the program, whose arena would wait for the collector else.
        team, tape = self._team, Tape(taped, self._team.n_threads)
        self.tapes.append(tape)
        raised = self.places.raised

        def run(dims: Mapping[str, int]) -> None:
            team.run(tape)
            if over_arrays and raised[0]:
                _fail(raised, over_arrays)

        @functools.cache
        def timed_tape() -> Tape:
            return Tape(taped, team.n_threads, timed=True)

        def run_timed(timer: CpuTimer, dims: Mapping[str, int]) -> None:
            timer.walk(timed_tape(), [node for node, _ in steps])
            if over_arrays and raised[0]:
                _fail(raised, over_arrays)

        return _ProgramPart(run, run_timed)

    def _fallback(self, node: Node) -> _ProgramPart:
        places = self.places

        def run(dims: Mapping[str, int]) -> None:
            values = {source: places.view(source, resolve(source.shape, dims)) for source in node.inputs}
            result = evaluate(node, values)
            if node.type.parts:
                for i, kind in enumerate(node.type.parts):
                    places.result(node, i, resolve(kind.shape, dims))[...] = result[i]
            elif not node.op.is_write:
                places.view(node, resolve(node.shape, dims))[...] = result

        return _ProgramPart(run, lambda timer, dims: timer.call(node, run, dims))


def _lowered(
    graph: Graph,
    constants: Collection[Node],
    support: CpuNodeSupport,
    tuning: CpuTuning,
    n_threads: int,
    one_order: bool,
) -> list[Part]:
    """The kernel calls of a graph between the nodes that have none."""
    parts: list[Part] = []
    pending: list[tuple[Node, KernelCall]] = []
    for node in graph.nodes:
        if node.op.family == "leaf" or node.op.view or node in constants:
            continue
        lowering = support.lowering(node.op)
        if lowering is not None and support.refuses(node) is None:
            calls = lowering.steps(node, n_threads, one_order)
            pending += [(node, tuning.applied(call, n_threads)) for call in calls]
            continue
        parts += [pending, node]
        pending = []
    return [*parts, pending]


def _fail(raised: Array, over_arrays: Mapping[int, Node]) -> NoReturn:
    """The error of a kernel over arrays that has raised an exception; its rows are not written."""
    node, raised[0] = over_arrays[int(raised[0])], 0
    raise BackendError(
        f"{node.name}: the compiled kernel of {node.op.name} raised an exception on {node!r}: wanted one "
        "that raises nothing; it may assign an array to one of another shape, or divide with "
        "error_model='python'. Run uncompiled, it says which"
    )


def _compiled(refs: Collection[AnyKernelRef], progress: Progress) -> dict[AnyKernelRef, LoadedKernel]:
    """Each kernel by its reference. numba is imported only for kernels over arrays."""

    def report(done: int, total: int) -> None:
        progress("compile", done, total)

    by_name = compile_kernels([ref for ref in refs if isinstance(ref, KernelRef)], report)
    kernels: dict[AnyKernelRef, LoadedKernel] = {
        ref: by_name[ref.name] for ref in refs if isinstance(ref, KernelRef)
    }
    over_arrays = [ref for ref in refs if not isinstance(ref, KernelRef)]
    if over_arrays:
        from graphml_cpu.array_kernels.numba_compiler import compile_array_kernels

        for ref, kernel in compile_array_kernels(over_arrays, report).items():
            kernels[ref] = kernel
    return kernels


def _fold(graph: Graph, weights: Mapping[str, Array], support: CpuNodeSupport) -> dict[Node, Array]:
    """Values that weights alone decide and no kernel makes, computed once: dequantised weights, unfused."""
    folded: dict[Node, Array] = {}
    for node in graph.nodes:
        if node.op.family == "leaf" or node.op.view or support.refuses(node) is None:
            continue
        if all(source.op is weight_leaf or source in folded for source in node.inputs):
            values = {s: folded[s] if s in folded else weights[s.name] for s in node.inputs}
            folded[node] = np.ascontiguousarray(evaluate(node, values))
    return folded
