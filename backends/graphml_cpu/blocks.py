"""Addresses: where the arguments of kernel calls are, and the parameter blocks made of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

import numpy as np

from graphml.backend import Plan, State
from graphml.backend.node_values import result_of, storage_of, viewed
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import state_leaf, weight_leaf
from graphml_cpu.compiler import LoadedKernel
from graphml_cpu.lowering.step import (
    AddressTable,
    Argument,
    CpuWorkspace,
    HostConstant,
    KernelCall,
    NodeResult,
    RowCount,
    Scratch,
)
from graphml_cpu.node_support import CpuNodeSupport
from graphml_cpu.runtime.hazards import MemoryRegion
from graphml_cpu.sizes import part_offset, value_bytes
from graphml_cpu.state import zeros

_PAGE = 4096
_IN_MEMORY = (CpuWorkspace, Node, NodeResult)
_SLOTS = 1 << 14  # kernels hold addresses of slots, so their arrays never grow; ample for any graph


class CpuPlaces:
    """Knows the address of everything that a program touches, for each thread.

    The values of the step's dimensions and the addresses of the session's state are slots that kernels read
    at run time, so nothing on the tape changes from step to step or from session to session.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        weights: Mapping[str, Array],
        constants: Mapping[Node, Array],
        arena: Array,
        n_threads: int,
        support: CpuNodeSupport,
        own: Collection[Node] = (),
    ) -> None:
        """own: the nodes of which each thread has a copy, see `own_rows`."""
        self.n_threads, self._support, self._own = n_threads, support, own
        self._plan, self._weights, self._constants, self._arena = plan, weights, constants, arena
        self._arena_at = int(arena.ctypes.data)
        self._made: dict[tuple[HostConstant | AddressTable, int], Array] = {}
        self._regions: dict[Argument, MemoryRegion | None] = {}
        self._copies: dict[Node, tuple[int, int]] = {}
        self._sizes: dict[Node, tuple[int, bool]] = {}
        self._scratch: Array = zeros(n_threads * _PAGE).reshape(n_threads, _PAGE)
        self._states = {name: i for i, name in enumerate(graph.leaves("state"))}
        self._n_fixed = 0
        self._state_slots = np.zeros(_SLOTS, np.int64)
        self._state: State | None = None
        self._rows: dict[RowCount, int] = {}
        self._row_slots = np.zeros(_SLOTS, np.int64)
        self._row_slots_at = int(self._row_slots.ctypes.data)
        self._state_slots_at = int(self._state_slots.ctypes.data)
        self.raised = np.zeros(1, np.int64)  # the address of a parameter block whose kernel has raised

    def reserve_scratch(self, steps: list[KernelCall]) -> None:
        """Make room for the largest scratch of any step; before any block is filled."""
        sizes = [a.n_bytes for step in steps for a in step.arguments.values() if isinstance(a, Scratch)]
        width = -(-max(sizes, default=1) // _PAGE) * _PAGE
        # Whole pages: kernels store whole vectors there, which must be aligned.
        self._scratch = zeros(self.n_threads * width).reshape(self.n_threads, width)

    def bind(self, dims: Mapping[str, int], state: State) -> None:
        """Set the step's dimensions and the session's state."""
        for rows, slot in self._rows.items():
            self._row_slots[slot] = rows.factor * (dims[rows.symbol] if rows.symbol else 1)
        if state is not self._state:
            self._state = None  # until all addresses are its own
            for name, i in self._states.items():
                self._state_slots[i] = state.array(name).ctypes.data
            self._state = state

    def _fixed(self, node: Node) -> Array | None:
        """The array of a weight or of a value folded from weights."""
        return self._weights[node.name] if node.op is weight_leaf else self._constants.get(node)

    def view(self, node: Node, shape: tuple[int, ...]) -> Array:
        """A value as a NumPy array; of a replicated one, the first thread's copy."""
        base = storage_of(node)
        fixed = self._fixed(base)
        if fixed is not None:
            return fixed if node is base else fixed.reshape(shape)  # a view of a weight has its own shape
        if base.op is state_leaf:
            assert self._state is not None
            return self._state.array(base.name)
        if node.dtype.numpy is None:
            raise BackendError(
                f"{node.name}: values of {node.dtype.name} have no NumPy form on the CPU backend"
            )
        return self._array(self._plan.offsets[base] + _offset(node), node.dtype.numpy, shape)

    def result(self, node: Node, index: int, shape: tuple[int, ...]) -> Array:
        """One result of a node that has several as a NumPy array."""
        kind = node.type.parts[index].dtype.numpy
        if kind is None:
            raise BackendError(f"{node.name}: its result {index} has no NumPy form on the CPU backend")
        return self._array(self._plan.offsets[node] + part_offset(node.type, index), kind, shape)

    def _array(self, start: int, kind: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
        return self._arena[start : start + prod(shape) * kind.itemsize].view(kind).reshape(shape)

    def region(self, argument: Argument) -> MemoryRegion | None:
        """See `hazards.Regions`."""
        if not isinstance(argument, _IN_MEMORY):
            return None
        if argument not in self._regions:  # each is asked for three times
            self._regions[argument] = self._region(argument)
        return self._regions[argument]

    def is_replicated(self, node: Node) -> bool:
        """Whether each thread has a copy of a value."""
        return viewed(node) in self._own

    def copy_bytes(self, node: Node) -> tuple[int, bool]:
        """Bytes of a value that owns its storage, and whether each thread has a copy of its own."""
        if node not in self._sizes:
            self._sizes[node] = value_bytes(node.type), node in self._own
        return self._sizes[node]

    def _region(self, argument: CpuWorkspace | Node | NodeResult) -> MemoryRegion | None:
        if isinstance(argument, CpuWorkspace):
            start = self._plan.workspaces[argument.node]
            size = self._support.workspace(argument.node, self.n_threads)
            return MemoryRegion("arena", start, start + size)
        base = argument.node if isinstance(argument, NodeResult) else storage_of(argument)
        result = (base, argument.index) if isinstance(argument, NodeResult) else result_of(argument)
        if self._fixed(base) is not None:
            return None
        if base.op is state_leaf:
            return MemoryRegion(base.name, 0, 1)
        start, (size, copied) = self._plan.offsets[base], self.copy_bytes(base)
        if copied:  # the copies of several results are thread by thread
            return MemoryRegion("arena", start, start + size * self.n_threads, private=True)
        if result is not None:
            fused, index = result
            start, size = start + part_offset(fused.type, index), value_bytes(fused.type.parts[index])
        return MemoryRegion("arena", start, start + size)

    def slot(self, kind: str, argument: Argument, thread: int) -> float:
        """What a parameter block holds for an argument of a kernel's parameter kind."""
        if kind == "dim":
            if isinstance(argument, int):
                argument = RowCount(None, argument)
            assert isinstance(argument, RowCount)
            return self._row_slots_at + 8 * self._rows.setdefault(argument, len(self._rows))
        if kind == "raised":
            return int(self.raised.ctypes.data)
        if kind == "run_address":
            return self._run_address(argument, thread)
        if isinstance(argument, int | float):
            return argument
        return self._address(argument, thread)

    def _run_address(self, argument: Argument, thread: int) -> int:
        """The slot of a state's address, which `bind` fills; of what never moves, a slot filled here."""
        base = storage_of(argument) if isinstance(argument, Node) else None
        if base is not None and base.op is state_leaf:
            slot = self._states[base.name]
        else:
            slot = len(self._states) + self._n_fixed
            self._n_fixed += 1
            self._state_slots[slot] = self._address(argument, thread)
        return self._state_slots_at + 8 * slot

    def is_own(self, kind: str, argument: Argument) -> bool:
        """Whether each thread has memory of its own for an argument, and so another `slot`."""
        if isinstance(argument, NodeResult):
            argument = argument.node
        if not isinstance(argument, Node):
            return isinstance(argument, (Scratch, AddressTable))
        if kind == "run_address" and storage_of(argument).op is state_leaf:
            return False
        return self._copy(argument)[1] != 0

    def _copy(self, node: Node) -> tuple[int, int]:
        if node not in self._copies:  # each is asked for by several steps
            self._copies[node] = self._first_and_stride(node)
        return self._copies[node]

    def _address(self, argument: Argument, thread: int) -> int:
        if isinstance(argument, Node):
            first, stride = self._copy(argument)
            return first + thread * stride
        if isinstance(argument, Scratch):
            return int(self._scratch[thread].ctypes.data)
        if isinstance(argument, CpuWorkspace):
            return self._arena_at + self._plan.workspaces[argument.node]
        if isinstance(argument, HostConstant | AddressTable):
            key = argument, thread if isinstance(argument, AddressTable) else 0
            if key not in self._made:
                self._made[key] = self._make(argument, thread)
            return int(self._made[key].ctypes.data)
        if isinstance(argument, NodeResult):
            return self._address(argument.node, thread) + part_offset(argument.node.type, argument.index)
        raise BackendError(f"no address for {argument!r}")

    def _first_and_stride(self, node: Node) -> tuple[int, int]:
        """Address of the first thread's copy of a value, and the bytes from one copy to the next."""
        base = storage_of(node)
        fixed = self._fixed(base)
        if fixed is not None:
            return int(fixed.ctypes.data), 0
        size, copied = self.copy_bytes(base)
        return self._arena_at + self._plan.offsets[base] + _offset(node), size if copied else 0

    def _make(self, argument: HostConstant | AddressTable, thread: int) -> Array:
        if isinstance(argument, HostConstant):
            return np.ascontiguousarray(argument.make(self._weights))
        rows = [
            [self._address(e, thread) if isinstance(e, Node) else e for e in row] for row in argument.rows
        ]
        return np.array(rows, np.int64)


def _offset(node: Node) -> int:
    """Where in its owner's storage a value begins: not at 0 if it is one of several results."""
    result = result_of(node)
    return 0 if result is None else part_offset(result[0].type, result[1])


def fill_blocks(kernel: LoadedKernel, step: KernelCall, places: CpuPlaces) -> list[Array]:
    """The parameter block of each thread for one kernel call: one for all where they share all memory."""
    arguments = step.arguments
    first = kernel.block(**{name: places.slot(kind, arguments[name], 0) for name, kind in kernel.parameters})
    if places.n_threads == 1:
        return [first]
    own = [(name, kind) for name, kind in kernel.parameters if places.is_own(kind, arguments[name])]
    if not own:
        return [first] * places.n_threads
    blocks = [first]
    for thread in range(1, places.n_threads):
        block = first.copy()
        for name, kind in own:
            block[kernel.places[name]] = places.slot(kind, arguments[name], thread)
        blocks.append(block)
    return blocks
