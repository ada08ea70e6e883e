"""A planned graph -> recordings of dispatches that are submitted again and again, with NumPy between them.

All that can be known beforehand is made when the program is: kernels, bindings, numbers. A step writes its
inputs, submits, and reads the outputs back.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod

from graphml.backend import Plan, Progress, State, TakeTimes
from graphml.backend.node_values import storage_of
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import resolve
from graphml_gpu.driver import Bytes, DispatchRecording, Groups, Range
from graphml_gpu.fold import fold
from graphml_gpu.host import Host, Mark, Missing
from graphml_gpu.lowered_graph import HostStretch, LoweredGraph, Stretch
from graphml_gpu.memory import Memory
from graphml_gpu.node_support import GpuNodeSupport
from graphml_gpu.parameters import Parameters
from graphml_gpu.places import GpuPlaces
from graphml_gpu.run_outputs import Outputs, of_a_step
from graphml_gpu.state import GpuState
from graphml_gpu.timing import GpuTimer
from graphml_gpu.tuning import UNTUNED, GpuTuning

_KEPT = 64  # dims of which it is kept what is copied and read


class GpuProgram:
    """See `graphml.backend.Program`. One run at a time; several states (sessions) may take turns.

    support: what the device runs. dispatches, kernels, fallbacks, parts: of `LoweredGraph`.
    encode_s: see `graphml.backend.EncodingProgram`, with what NumPy does before the last dispatch.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        weights: Mapping[str, Array],
        memory: Memory,
        progress: Progress,
        support: GpuNodeSupport,
        tuning: GpuTuning = UNTUNED,
    ) -> None:
        self._graph, self._memory, self._progress = graph, memory, progress
        constants = fold(graph, weights, support.refuses)
        self.places = GpuPlaces(memory, graph, plan, weights, constants, support)
        self._lowered = lowered = LoweredGraph(graph, memory, self.places, constants, tuning, support)
        self.dispatches, self.kernels = lowered.dispatches, lowered.kernels
        self.fallbacks, self.parts = lowered.fallbacks, lowered.parts
        self._timer: GpuTimer | None = None
        self.encode_s = 0.0
        self._transfers: dict[object, tuple[Sequence[tuple[Range, Range]], Sequence[Missing]]] = {}
        self._inputs = graph.leaves("input")
        self._latest: Mark | None = None
        arguments = lowered.arguments
        self._read_later = {storage_of(argument) for argument in arguments if isinstance(argument, Node)}
        self._keeps_state = bool(graph.leaves("state"))
        self._recordings: weakref.WeakKeyDictionary[object, list[DispatchRecording]] = (
            weakref.WeakKeyDictionary()
        )
        with memory.lock:
            self.places.upload(arguments, progress)
            self.parameters = Parameters(memory, list(map(lowered.numbers, range(len(self.dispatches)))))
            self._stateless = self._record(None, progress)  # compiles all kernels, too

    @property
    def inputs(self) -> Mapping[str, Array]:
        """See `graphml.backend.Program`."""
        return self.places.inputs.arrays

    def run(self, dims: Mapping[str, int], state: State) -> Outputs:
        """Hand one step over; see `graphml.backend.Program`. Outputs are read when they are asked for."""
        with self._memory.lock:
            host, _ = self._start(dims, state, {}, ())
            return Outputs(self._graph.outputs, host, lambda: self._latest is host.mark)

    @property
    def runs_ahead(self) -> bool:
        """See `graphml.backend.AheadProgram`: what NumPy works out has to be waited for."""
        return not self.fallbacks

    def begin(
        self, dims: Mapping[str, int], state: State, fed: Mapping[str, str], outputs: Sequence[str]
    ) -> Callable[[], Mapping[str, Array]]:
        """See `graphml.backend.AheadProgram`."""
        nodes = {name: self._graph.outputs[name] for name in outputs}
        with self._memory.lock:
            host, ready = self._start(dims, state, fed, tuple(nodes.values()))

        def results() -> Mapping[str, Array]:
            with host.lock:
                with of_a_step():
                    ready()
                return {name: host.value(node) for name, node in nodes.items()}

        return results

    def _start(
        self, dims: Mapping[str, int], state: State, fed: Mapping[str, str], wanted: tuple[Node, ...]
    ) -> tuple[Host, Callable[[], None]]:
        """Submit a step; fed: input -> output of the step before that it is.

        wanted: values that are read back with it, where nothing runs in NumPy; what is given waits for them.
        """
        if self._memory.closed:
            raise BackendError(f"{self._memory.driver.facts.name}: the device was closed")
        own = self._own(state)
        with of_a_step():
            return self._submitted(dims, own, fed, wanted)

    def _submitted(
        self, dims: Mapping[str, int], own: GpuState | None, fed: Mapping[str, str], wanted: tuple[Node, ...]
    ) -> tuple[Host, Callable[[], None]]:
        if self._latest is not None and not self._latest.asked:
            self._memory.driver.wait()  # or steps that nobody looks at would pile up
        begin = time.thread_time()
        recordings = self._recorded(own)
        grids = self.grids(dims)
        self.places.inputs.upload()
        for name in fed:
            self.places.inputs.forget(name)
        host = Host(self._memory, self.places, dims, own)
        self._latest = host.mark
        copies, missing = self._transferred(host, dims, fed, wanted)
        if self._timer is not None:
            self._timer.begin()
        reads = [where for _, _, where in missing]
        waits: Callable[[], list[Bytes]] = list
        i = 0
        for part in self.parts:
            if isinstance(part, HostStretch):
                self._run_host(host, part)
                continue
            waits = self._submit(part, recordings[i], grids, own, copies, reads)
            i, copies, reads = i + 1, [], []
        if reads:
            waits = self._memory.driver.later(reads)
        if self._timer is None:
            self.encode_s = time.thread_time() - begin
        else:
            self._timer.finish(dims)
        return host, lambda: host.keep(missing, waits())

    def _transferred(
        self, host: Host, dims: Mapping[str, int], fed: Mapping[str, str], wanted: tuple[Node, ...]
    ) -> tuple[Sequence[tuple[Range, Range]], Sequence[Missing]]:
        """What is copied before a step and read back after it: the same for the same dims."""
        host.mark.asked = bool(wanted)
        key = tuple(dims.items()), tuple(fed.items()), wanted
        if key not in self._transfers:
            if len(self._transfers) >= _KEPT:
                self._transfers.clear()
            copies = [self._feed(name, self._graph.outputs[output], dims) for name, output in fed.items()]
            self._transfers[key] = copies, host.missing(wanted) if wanted else []
        return self._transfers[key]

    def _feed(self, name: str, source: Node, dims: Mapping[str, int]) -> tuple[Range, Range]:
        """What to copy from a value of the step before to an input: what the input has in this one."""
        leaf = self._inputs[name]
        n_bytes = prod(resolve(leaf.shape, dims)) * leaf.dtype.bytes_for(1)
        (begin, at, _), (end, to, _) = self.places.range(source, None), self.places.range(leaf, None)
        return (begin, at, n_bytes), (end, to, n_bytes)

    @property
    def nodes(self) -> list[Node]:
        """The node of each dispatch, in order."""
        return [node for node, _ in self.dispatches]

    def grids(self, dims: Mapping[str, int]) -> Sequence[Groups]:
        """The grid of each dispatch for a step's dims and inputs; those with a 0 are left out."""
        return self.parameters.prepare(self._with_largest(dims))

    def _with_largest(self, dims: Mapping[str, int]) -> Mapping[str, int]:
        """The step's dims, and how far those inputs go that numbers follow."""
        if not self._lowered.largest:
            return dims
        largest = {
            largest.key: largest.of(self.inputs[name][tuple(map(slice, resolve(shape, dims)))])
            for name, (largest, shape) in self._lowered.largest.items()
        }
        return {**dims, **largest}

    def time_steps(self, take: TakeTimes | None) -> None:
        """See `graphml.backend.TimedProgram`."""
        with self._memory.lock:
            self._timer = None if take is None else GpuTimer(take, self._memory.driver)

    def _run_host(self, host: Host, part: HostStretch) -> None:
        if self._timer is None:
            host.run(part.nodes, self._read_later.__contains__)
            return
        for node in part.nodes:
            self._timer.call(node, functools.partial(host.run, (node,), self._read_later.__contains__))

    def _submit(
        self,
        part: Stretch,
        recording: DispatchRecording,
        grids: Sequence[Groups],
        state: GpuState | None,
        copies: Sequence[tuple[Range, Range]],
        reads: Sequence[Range],
    ) -> Callable[[], list[Bytes]]:
        if state is not None:
            state.flush()
            state.changed(part.changes)
        groups = grids[part.first : part.last]
        if self._timer is None:
            return self._memory.driver.submit(recording, groups, copies=copies, reads=reads)
        nodes = [node for node, _ in self.dispatches[part.first : part.last]]
        self._timer.submit(recording, groups, nodes, copies)
        return self._memory.driver.later(reads)

    def _own(self, state: State) -> GpuState | None:
        if not self._keeps_state:
            return None
        if not isinstance(state, GpuState):
            raise BackendError(f"wanted a state that this device made; got {type(state).__name__}")
        return state

    def _recorded(self, state: GpuState | None) -> list[DispatchRecording]:
        """The recordings for a state, made when it is first run with."""
        if state is None:
            return self._stateless
        recording = self._recordings.get(state)
        if recording is None:
            recording = self._recordings[state] = self._record(state, self._progress)
        return recording

    def _record(self, state: GpuState | None, progress: Progress) -> list[DispatchRecording]:
        recordings = []
        for part in self.parts:
            if isinstance(part, Stretch):
                numbers = range(part.first, part.last)
                bound = [self._lowered.bound(i, state, self.parameters.range(i)) for i in numbers]
                recordings.append(self._memory.driver.record(bound, progress))
        return recordings
