"""Where everything is on a device: arguments of dispatches -> ranges of buffers.

Knows the plan, weights and states; nothing of kernels or of the order of dispatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graphml.backend import Arena, Plan, Progress
from graphml.backend.node_values import result_of, storage_of
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import input_leaf, state_leaf, weight_leaf
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import Argument, GpuWorkspace, HostConstant, NodeResult, Shard, Zeros
from graphml_gpu.driver import Buffer, Range
from graphml_gpu.memory import HeldArray, Memory, cut
from graphml_gpu.node_support import GpuNodeSupport, part_offset, value_bytes
from graphml_gpu.state import GpuState


class Inputs:
    """The step's inputs: one block in main memory, of which the arrays are parts, and one on the device.

    Small ones lie together, so that what changes from token to token is one short range.
    """

    def __init__(self, memory: Memory, graph: Graph) -> None:
        self._memory = memory
        self.arrays: dict[str, Array] = {}
        self.offsets: dict[str, int] = {}
        leaves = dict(sorted(graph.leaves("input").items(), key=lambda leaf: value_bytes(leaf[1].type)))
        total = 0
        for name, node in leaves.items():
            self.offsets[name] = total
            total += value_bytes(node.type)
        self._block = np.zeros(total, np.uint8)
        self._sent = np.zeros(total, np.uint8)  # as the device's memory is at first
        self.buffer = memory.buffer(self, total, "inputs")
        for name, node in leaves.items():
            start, sizes = self.offsets[name], bounds(node.shape)
            size = value_bytes(node.type)
            raw = self._block[start : start + size]
            if node.dtype.numpy is None:
                *lead, last = sizes
                sizes = (*lead, node.dtype.bytes_for(last))
            else:
                raw = raw.view(node.dtype.numpy)
            self.arrays[name] = raw[: int(np.prod(sizes, dtype=np.int64))].reshape(sizes)

    def upload(self) -> None:
        """Write what has changed since the last step, as one range."""
        changed = np.flatnonzero(self._block.view(np.uint64) != self._sent.view(np.uint64))
        if changed.size:
            first, last = int(changed[0]) * 8, int(changed[-1]) * 8 + 8
            self._sent[first:last] = ~self._block[first:last]  # not known to be there if this is interrupted
            self._memory.driver.write(self.buffer, first, self._block[first:last])
            self._sent[first:last] = self._block[first:last]

    def forget(self, name: str) -> None:
        """The device has changed an input: it is written at the next step, as if it had changed here."""
        first = self.offsets[name]
        last = first + self.arrays[name].nbytes
        self._sent[first:last] = ~self._block[first:last]


class GpuPlaces:
    """Knows the range of every argument of one program's dispatches."""

    def __init__(
        self,
        memory: Memory,
        graph: Graph,
        plan: Plan,
        weights: Mapping[str, Array],
        constants: Mapping[Node, Array],
        support: GpuNodeSupport,
    ) -> None:
        self._memory, self._plan, self.weights, self.constants = memory, plan, weights, constants
        self._support = support
        self.inputs = Inputs(memory, graph)
        self.arena = _arena(memory, self, plan)
        self._held: dict[Any, HeldArray] = {}
        self._zeros: dict[Zeros, Buffer] = {}
        self._nothing = memory.buffer(self, 16, "nothing")
        self._no_state: dict[str, Buffer] = {}

    def fixed(self, node: Node) -> Array | None:
        """The array of a weight, or of a value that weights alone decide."""
        return self.weights[node.name] if node.op is weight_leaf else self.constants.get(node)

    def is_weight(self, node: Node) -> bool:
        """Whether a value is a weight, or decided by weights alone."""
        return self.fixed(storage_of(node)) is not None

    def shards(self, weight: Node) -> Sequence[Shard]:
        """See `dispatch.Context`."""
        base = storage_of(weight)
        array = self.fixed(base)
        if array is None:
            raise BackendError(f"{weight.name}: wanted a weight to cut into shards; it is {base.op.name}")
        size = self._memory.rows_per_shard(array, base.name)
        total = array.shape[0] if array.shape else 1
        return tuple(Shard(weight, first, count) for first, count in cut(total, size))

    def upload(self, arguments: Iterable[Argument], progress: Progress) -> None:
        """Have all weights and constants among the arguments on the device."""
        wanted: dict[Any, tuple[str, Array]] = {}
        for argument in arguments:
            if isinstance(argument, HostConstant):
                if argument not in wanted:
                    wanted[argument] = "constant", argument.make(self.weights)
            elif isinstance(argument, Node | Shard):
                base = storage_of(argument.node if isinstance(argument, Shard) else argument)
                array = self.fixed(base)
                if array is not None:
                    wanted[base] = base.name, array
        self._held |= dict(zip(wanted, self._memory.hold(wanted.values(), progress), strict=True))

    def state_of(self, argument: Argument) -> str | None:
        """The name of the state that an argument is, if it is one."""
        if isinstance(argument, Node) and storage_of(argument).op is state_leaf:
            return storage_of(argument).name
        return None

    def memory_of(self, argument: Argument) -> Buffer | None:
        """The buffer that an argument shares with others: the arena, or that of the inputs; None: neither."""
        if isinstance(argument, Node):
            base = storage_of(argument)
            if base.op is input_leaf:
                return self.inputs.buffer
            return None if base.op is state_leaf or self.fixed(base) is not None else self.arena
        return self.arena if isinstance(argument, GpuWorkspace | NodeResult) else None

    def range(self, argument: Argument, state: GpuState | None) -> Range:
        """The place of an argument; without a state, states have none."""
        match argument:
            case HostConstant():
                buffer = self._held[argument].rows(0, self._held[argument].array.shape[0])
                return buffer, 0, buffer.n_bytes
            case Shard():
                buffer = self._held[storage_of(argument.node)].rows(argument.first, argument.count)
                return buffer, 0, buffer.n_bytes
            case Zeros():
                if argument not in self._zeros:
                    self._zeros[argument] = self._memory.buffer(self, argument.n_bytes, "zeros")
                buffer = self._zeros[argument]
                return buffer, 0, buffer.n_bytes
            case GpuWorkspace():
                node = argument.node
                if node not in self._plan.workspaces:
                    raise BackendError(f"{node.name}: {argument!r}, but its lowering asks for no workspace")
                size = self._support.workspace(node)
                return self.arena, self._plan.workspaces[node] + argument.offset, size - argument.offset
            case NodeResult():
                kind = argument.node.type
                start = self._plan.offsets[argument.node] + part_offset(kind, argument.index)
                return self.arena, start, value_bytes(kind.parts[argument.index])
            case Node():
                return self._of_node(argument, state)
        return self._nothing, 0, self._nothing.n_bytes

    def _in_place_of(self, state: str) -> Buffer:
        """A buffer for a state that is not there yet: one each, or kernels would be bound otherwise."""
        if state not in self._no_state:
            self._no_state[state] = self._memory.buffer(self, 16, f"no state {state}")
        return self._no_state[state]

    def _of_node(self, node: Node, state: GpuState | None) -> Range:
        base = storage_of(node)
        held = self._held.get(base)
        if held is not None:
            buffer = held.rows(0, held.array.shape[0] if held.array.shape else 1)
            return buffer, 0, buffer.n_bytes
        if base.op is state_leaf:
            buffer = self._in_place_of(base.name) if state is None else state.buffer(base.name)
            return buffer, 0, buffer.n_bytes
        if base.op is input_leaf:
            return self.inputs.buffer, self.inputs.offsets[base.name], value_bytes(base.type)
        start, result = self._plan.offsets[base], result_of(node)
        if result is None:
            return self.arena, start, value_bytes(base.type)
        _, index = result
        return self.arena, start + part_offset(base.type, index), value_bytes(base.type.parts[index])


def _arena(memory: Memory, owner: object, plan: Plan) -> Buffer:
    """The arena of a plan, or the one that it shares with others."""
    shared: Arena | None = plan.arena
    if shared is None:
        return memory.buffer(owner, plan.peak, "arena")
    if shared.memory is None:
        shared.memory = memory.buffer(shared, shared.n_bytes, "arena")
    buffer: Buffer = shared.memory
    return buffer
