"""Backends `ray.NAME`: a stage each on a node of a Ray cluster, for models that no machine holds alone.

The graph is cut here as for several devices of one machine; each part is compiled and run by its stage, which
holds its weights and states. Knows Ray and the contract of backends; nothing of models.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray

from graphml import settings
from graphml.backend import Backend, Plan, Progress, SubmittedStep
from graphml.cluster.model_copies import code_digest
from graphml.cluster.ray_cluster import RayCluster, RayNode, described
from graphml.cluster.stage import Stage, windows
from graphml.errors import BackendError, StatesLostError, UsageError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array, plain_bytes
from graphml.ir.shape import bounds
from graphml.loading import discovery
from graphml.passes.cut import COPY

PART = 32 << 20
"""Bytes of a weight that are sent at once."""
PATIENCE_S, RETRY_S = 60.0, 2.0
"""Seconds for which a stage that has ended is started anew, and between two tries."""
TABLE_BYTES = 1 << 16
"""An input of two dimensions and so many bytes is sent up to its last changed column: block tables."""
AHEAD = 4
"""Parts that are under way at a time."""


class _Joined:
    """The cluster that this process has joined for its stages, while any is open."""

    def __init__(self) -> None:
        self.cluster: RayCluster | None = None
        self.devices: list[StageDevice] = []

    def enter(self, device: StageDevice) -> RayCluster:
        """The cluster, of which a device is from now on."""
        if self.cluster is None:
            settings.quiet_ray()  # of steps behind one of a stage that has ended
            self.cluster = RayCluster("auto")
        self.devices.append(device)
        return self.cluster

    def place(self, device: StageDevice) -> RayNode:
        """The living node with the fewest other stages."""
        assert self.cluster is not None
        places = Counter(other.node.id for other in self.devices if other is not device)
        nodes = self.cluster.nodes
        if not nodes:
            raise UsageError(f"{device.name}: the cluster has no node with CPUs")
        return min(nodes, key=lambda node: places[node.id])

    def leave(self, device: StageDevice) -> None:
        """A stage has been closed."""
        if device in self.devices:
            self.devices.remove(device)
        if not self.devices and self.cluster is not None:
            self.cluster.close()
            self.cluster = None


_JOINED = _Joined()


def stage_backend(name: str) -> Backend:
    """The backend `ray.NAME`: what the backend `cpu` can do, on a node."""
    cpu = discovery.backend("cpu")
    return replace(cpu, name=f"ray.{name}", open=lambda threads: StageDevice(f"ray.{name}", threads))


class StageDevice:
    """See `graphml.backend.Device`. threads: of its node, None: all of its CPUs.

    generation: how many times it was started anew. Where its actor has ended, calls are a StatesLostError
    until a state is begun or restarted: then it starts anew on a living node, with its weights and programs.
    """

    def __init__(self, name: str, threads: int | None) -> None:
        self.name, self._threads, self.generation = name, threads, 0
        self._sent: dict[tuple[str, int], tuple[str, Array]] = {}
        self._programs: weakref.WeakSet[StageProgram] = weakref.WeakSet()
        self._unused: deque[tuple[int, int]] = deque()
        self._has_ended = self.deterministic = False
        self._ending = threading.Lock()
        self.free_bytes = 0
        self.order_of_sums = ""
        self._cluster = _JOINED.enter(self)
        try:
            self._start()
        except BaseException:
            _JOINED.leave(self)
            raise

    def _start(self) -> None:
        """Start the actor on the node that has the fewest stages."""
        self.node = _JOINED.place(self)
        cpus = self._threads or self.node.cpus
        self._cluster.check_free({"CPU": cpus})
        actor: Any = ray.remote(Stage)
        options = {"num_cpus": cpus, "scheduling_strategy": RayCluster.on(self.node.id)}
        self._actor = actor.options(**options).remote("cpu", max(1, int(cpus)), settings.ray_rows() == "f16")
        code, self.free_bytes = self.call("facts")
        if code != code_digest():
            raise UsageError(f"{self.name}: {self.machine}: wanted graphml of the same commit as here")
        if self.deterministic:
            self.make_deterministic()
        self._check_room(sum(array.nbytes for _, array in self._sent.values()))

    @property
    def machine(self) -> str:
        """See `graphml.backend.RemoteDevice`."""
        return f"node {self.node}"

    @property
    def memory_bytes(self) -> int:
        """See `graphml.backend.RemoteDevice`."""
        n_stages = sum(device.node.id == self.node.id for device in _JOINED.devices)
        return self.free_bytes // max(n_stages, 1)

    def _check_room(self, n_bytes: int) -> None:
        """UsageError where weights of so many bytes have no room on its node."""
        if n_bytes > self.memory_bytes:
            raise UsageError(
                f"{self.name}: {self.machine}: wanted room for {n_bytes:,} bytes of weights; got "
                f"{self.memory_bytes:,} free"
            )

    def make_deterministic(self) -> None:
        """See `graphml.backend.DeterministicDevice`."""
        self.order_of_sums = self.call("make_deterministic")
        self.deterministic = True

    def started(self) -> None:
        """Start anew if it has ended: the stage gets its weights again, and makes its programs."""
        self._send_whole()
        if not self._has_ended:
            return
        end = time.monotonic() + PATIENCE_S
        while self._has_ended:
            try:
                self._begin_anew()
            except (UsageError, ray.exceptions.RayError, BackendError) as error:
                self._has_ended = True
                if time.monotonic() > end:
                    raise BackendError(f"{self.name}: cannot start anew: {error}") from None
                time.sleep(RETRY_S)  # that a node has died is not known at once

    def _send_whole(self) -> None:
        """What a stage was sent may not have come: a call does not run where one that it waits for fails."""
        for program in list(self._programs):
            program.send_whole()

    def _begin_anew(self) -> None:
        with self._ending:
            self._has_ended = False
            self.generation += 1
        self._start()
        for key, array in list(self._sent.values()):
            self._send(key, array)
        for program in list(self._programs):
            program.made_anew(self.call("lower", program.text, program.keys))

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the stage returns.

        StatesLostError where the stage has ended, BackendError where the cluster has, or where it fails.
        """
        generation = self.generation
        return self.wait(self.begin(method, *arguments), generation)

    def begin(self, method: str, *arguments: Any, n_results: int = 1) -> Any:
        """Ask the stage, for `wait`; of several results each apart. Calls are made in order."""
        self._check_alive()
        return getattr(self._actor, method).options(num_returns=n_results).remote(*arguments)

    def _check_alive(self) -> None:
        if self._has_ended:
            raise self._ended()

    def _ended(self) -> StatesLostError:
        return StatesLostError(f"{self.name}: the stage on {self.machine} has ended")

    def wait(self, reference: Any, generation: int) -> Any:
        """As `call`, of what was begun in that generation."""
        try:
            return self._get(reference, generation)
        except BaseException:
            self._send_whole()
            raise

    def _get(self, reference: Any, generation: int) -> Any:
        try:
            return self._cluster.get(reference)
        except (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError):
            with self._ending:  # others may have started it anew since
                self._has_ended |= generation == self.generation
            raise self._ended() from None
        except ray.exceptions.RayError as error:
            for cause in (error, getattr(error, "cause", None)):
                if isinstance(cause, ray.exceptions.ObjectLostError):  # of a stage before it, whose node died
                    raise StatesLostError(f"{self.name}: {described(error)}") from None
            raise BackendError(f"{self.name}: {self.machine}: {described(error)}") from None

    def storage(self, node: Node) -> int:
        """Bytes in NumPy: the stage plans by its own device."""
        return sum(plain_bytes(kind) for kind in node.type.parts or (node.type,))

    def workspace(self, node: Node) -> int:
        """0: likewise."""
        return 0

    def lower(
        self, graph: Graph, plan: Plan, weights: Mapping[str, Array], progress: Progress
    ) -> StageProgram:
        """Have the stage make the program by its own plan; it gets the weights that it does not have.

        Where it has ended it is started anew for that, once: a program has no states to lose.
        """
        try:
            return self._lowered(graph, weights, progress)
        except StatesLostError:
            return self._lowered(graph, weights, progress)

    def _lowered(self, graph: Graph, weights: Mapping[str, Array], progress: Progress) -> StageProgram:
        self.started()
        self._forget()
        for node in graph.nodes:
            if node.op.name == "patch":
                raise UsageError(f"{self.name}: a patch of {node.name!r} is a function of this process")
        names = list(graph.leaves("weight"))
        new = [name for name in names if (name, id(weights[name])) not in self._sent]
        arrays = [*(array for _, array in self._sent.values()), *(weights[name] for name in new)]
        self._check_room(sum(array.nbytes for array in arrays))
        sizes, done, keys = [weights[name].nbytes for name in names], 0, dict[str, str]()
        for name, n_bytes in zip(names, sizes, strict=True):
            keys[name] = self._key(name, weights[name])
            done += n_bytes
            progress("upload", done, sum(sizes))
        program = StageProgram(self, graph, keys, self.call("lower", str(graph), keys))
        self._programs.add(program)
        return program

    def _key(self, name: str, array: Array) -> str:
        """What the stage calls a weight, which is sent if it has not been."""
        known = self._sent.get((name, id(array)))
        if known is not None:
            return known[0]
        key = f"{name} {len(self._sent)}"
        self._send(key, array)
        self._sent[name, id(array)] = key, array  # held, so that no other array gets its id
        return key

    def _send(self, key: str, array: Array) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        under_way: deque[Any] = deque()
        for offset in range(0, max(len(flat), 1), PART):
            part = np.array(flat[offset : offset + PART])
            under_way.append(self.begin("receive", key, array.shape, array.dtype, offset, part))
            if len(under_way) >= AHEAD:
                self.wait(under_way.popleft(), self.generation)
        for reference in under_way:
            self.wait(reference, self.generation)

    def state(self, graph: Graph, dims: Mapping[str, int]) -> StageState:
        """Zeroed arrays on the stage."""
        self.started()
        self._forget()
        return StageState(self, str(graph), dict(dims))

    def unused(self, number: int, generation: int) -> None:
        """Nobody has what the stage calls so any more; it is told with the next call that makes something."""
        self._unused.append((number, generation))

    def _forget(self) -> None:
        unused = [self._unused.popleft() for _ in range(len(self._unused))]
        if numbers := [number for number, generation in unused if generation == self.generation]:
            self.begin("drop", numbers)

    def close(self) -> None:
        """End the stage."""
        if self in _JOINED.devices:
            if not self._cluster.is_lost:
                ray.kill(self._actor)
            _JOINED.leave(self)


class StageProgram:
    """See `graphml.backend.Program`. text, keys: the graph and its weights, as the stage was told them."""

    def __init__(self, device: StageDevice, graph: Graph, keys: Mapping[str, str], number: int) -> None:
        self._device = device
        self.made_anew(number)
        self.text, self.keys = str(graph), dict(keys)
        leaves = graph.leaves("input")
        self._shapes = {name: node.shape for name, node in leaves.items()}
        self._passes = {name.removeprefix(COPY) for name in graph.outputs if name.startswith(COPY)}
        self.inputs: dict[str, Array] = {
            name: np.zeros(bounds(node.shape), node.dtype.numpy) for name, node in leaves.items()
        }
        weakref.finalize(self, device.unused, number, device.generation)

    def made_anew(self, number: int) -> None:
        """What the stage calls it from now on; it has been sent no inputs yet."""
        self.number, self._sent = number, dict[str, Array]()

    def send_whole(self) -> None:
        """Assume nothing of what the stage has of its inputs."""
        self._sent.clear()

    def _unsent(self, name: str, values: Array) -> Array:
        """The leading part of an input's values behind which the stage has them already."""
        if values.ndim != 2 or values.nbytes < TABLE_BYTES:
            return values
        sent = self._sent.get(name)
        if sent is None or sent.shape != values.shape:
            self._sent[name] = values.copy()
            return values
        changed = np.flatnonzero((sent != values).any(axis=0))
        width = int(changed[-1]) + 1 if len(changed) else 0
        sent[:, :width] = values[:, :width]
        return values[:, :width]

    def run(self, dims: Mapping[str, int], state: Any) -> dict[str, Array]:
        """Run one step on the stage."""
        step = self.submit_part(dims, state, [])
        outputs, passed = step.outputs(), self._device.wait(step.passed, step.generation)
        return {**outputs, **{COPY + name: value for name, value in passed.items()}}

    def submit_part(self, dims: Mapping[str, int], state: Any, before: Sequence[SubmittedStep]) -> StageStep:
        """See `graphml.backend.PassingProgram`; values go from stage to stage directly."""
        steps = [step for step in before if isinstance(step, StageStep)]
        under_way = {name for step in steps for name in step.names}
        shapes = {name: shape for name, shape in self._shapes.items() if name not in under_way}
        held = state.current() if isinstance(state, StageState) else None
        windowed = windows(shapes, self.inputs, dims)
        inputs = {name: self._unsent(name, values) for name, values in windowed.items()}
        arguments = self.number, dict(dims), inputs, held
        results = self._device.begin("run", *arguments, *[step.passed for step in steps], n_results=2)
        return StageStep(self._device, results[0], results[1], self._passes)


class StageStep:
    """See `graphml.backend.SubmittedStep`. passed: a reference to the values by names that others read."""

    def __init__(self, device: StageDevice, outputs: Any, passed: Any, names: Collection[str]) -> None:
        self._device, self._outputs, self.passed, self.names = device, outputs, passed, names
        self.generation = device.generation

    def outputs(self) -> dict[str, Array]:
        """Wait for the stage; errors as of `StageDevice.wait`."""
        outputs: dict[str, Array] = self._device.wait(self._outputs, self.generation)
        return outputs


class StageState:
    """See `graphml.backend.State`, `RowsState`, `CopyingState` and `RestartingState`."""

    def __init__(self, device: StageDevice, graph_text: str, dims: Mapping[str, int]) -> None:
        self._device, self._text, self._dims = device, graph_text, dims
        self._begin()

    def _begin(self) -> None:
        self._number, self.n_bytes = self._device.call("state", self._text, self._dims)
        self.generation = self._device.generation
        weakref.finalize(self, self._device.unused, self._number, self.generation)

    def current(self) -> int:
        """What the stage calls it; StatesLostError where the stage was started anew since."""
        if self.generation != self._device.generation:
            raise StatesLostError(f"{self._device.name}: the stage was started anew; begin a session again")
        number: int = self._number
        return number

    def restart(self) -> None:
        """See `RestartingState`."""
        self._device.started()
        if self.generation != self._device.generation:
            self._begin()

    def array(self, name: str) -> Array:
        """A copy of an array, which cannot be written to."""
        array: Array = self._device.call("array", self.current(), name)
        array.flags.writeable = False
        return array

    def read_rows(self, names: Sequence[str], runs: Sequence[tuple[int, int]]) -> dict[str, Array]:
        """See `RowsState`."""
        rows: dict[str, Array] = self._device.call("read_rows", self.current(), list(names), _rows(runs))
        return rows

    def write_rows(self, runs: Sequence[tuple[int, int]], values: Mapping[str, Array]) -> None:
        """See `RowsState`."""
        self._device.call("write_rows", self.current(), _rows(runs), dict(values))

    def copy_rows(self, names: Sequence[str], copies: Sequence[tuple[int, int, int]]) -> None:
        """See `RowsState`."""
        source = _rows([(first, count) for first, _, count in copies])
        target = _rows([(first, count) for _, first, count in copies])
        self._device.call("copy_rows", self.current(), list(names), source, target)

    def row_copies(self, names: Sequence[str], count: int) -> StageCopies:
        """See `CopyingState`."""
        return StageCopies(self._device, self, list(names), count)


class StageCopies:
    """See `graphml.backend.RowCopies`; begun again with their state."""

    def __init__(self, device: StageDevice, state: StageState, names: list[str], count: int) -> None:
        self._device, self._state, self._names, self._count = device, state, names, count
        self._generation, self._number = -1, 0

    def _call(self, method: str, *arguments: Any) -> Any:
        of = self._state.current()
        if self._generation != self._state.generation:
            self._number = self._device.call("row_copies", of, self._names, self._count)
            self._generation = self._state.generation
            weakref.finalize(self, self._device.unused, self._number, self._generation)
        return self._device.call("of_copies", self._number, method, *arguments)

    def keep(self, row: int, at: int) -> None:
        """On the stage."""
        self._call("keep", row, at)

    def restore(self, at: int, row: int) -> None:
        """On the stage."""
        self._call("restore", at, row)

    def read(self, at: int) -> dict[str, Array]:
        """From the stage."""
        rows: dict[str, Array] = self._call("read", at)
        return rows

    def write(self, at: int, rows: Mapping[str, Array]) -> None:
        """On the stage."""
        self._call("write", at, dict(rows))


def _rows(runs: Sequence[tuple[int, int]]) -> Array:
    return np.concatenate(
        [np.arange(first, first + count) for first, count in runs] or [np.zeros(0, np.int64)]
    )
