"""Addresses: where the arguments of kernel calls lie, and the parameter blocks made of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from graphml.backend import Plan, State
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import state_leaf, weight_leaf
from graphml_cpu.compiler import Kernel
from graphml_cpu.hazards import Region
from graphml_cpu.lowering import table
from graphml_cpu.lowering.step import Argument, Constant, Rows, Scratch, Step, Workspace
from graphml_cpu.placement import one_copy_bytes, replicated, viewed
from graphml_cpu.state import zeros

_PAGE = 4096
_SLOTS = 1 << 14  # kernels hold addresses of slots, so their arrays never grow; ample for any graph


class Places:
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
    ) -> None:
        self.n_threads = n_threads
        self._plan, self._weights, self._constants, self._arena = plan, weights, constants, arena
        self._made: dict[Constant, Array] = {}
        self._scratch: Array = zeros(n_threads * _PAGE).reshape(n_threads, _PAGE)
        self._states = {name: i for i, name in enumerate(graph.leaves("state"))}
        self._n_fixed = 0
        self._state_slots = np.zeros(_SLOTS, np.int64)
        self._state: State | None = None
        self._rows: dict[Rows, int] = {}
        self._row_slots = np.zeros(_SLOTS, np.int64)

    def reserve_scratch(self, steps: list[Step]) -> None:
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
            for name, i in self._states.items():
                self._state_slots[i] = state.array(name).ctypes.data
            self._state = state

    def _fixed(self, node: Node) -> Array | None:
        """The array of a weight or of a value folded from weights."""
        return self._weights[node.name] if node.op is weight_leaf else self._constants.get(node)

    def view(self, node: Node, shape: tuple[int, ...]) -> Array:
        """A value as a NumPy array; of a replicated one, the first thread's copy."""
        base = _stored(node)
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
        start = self._plan.offsets[base]
        n_bytes = prod(shape) * node.dtype.numpy.itemsize
        return self._arena[start : start + n_bytes].view(node.dtype.numpy).reshape(shape)

    def region(self, argument: Argument) -> Region | None:
        """See `hazards.Regions`."""
        if isinstance(argument, Workspace):
            start = self._plan.workspaces[argument.node]
            size = table()[argument.node.op.name].workspace(argument.node, self.n_threads)
            return Region("arena", start, start + size)
        if not isinstance(argument, Node):
            return None
        base = _stored(argument)
        if self._fixed(base) is not None:
            return None
        if base.op is state_leaf:
            return Region(base.name, 0, 1)
        start, size = self._plan.offsets[base], one_copy_bytes(base)
        return Region(
            "arena", start, start + size * (self.n_threads if replicated(base) else 1), replicated(base)
        )

    def slot(self, kind: str, argument: Argument, thread: int) -> float:
        """What stands in a parameter block for an argument of a kernel's parameter kind."""
        if kind == "dim":
            if isinstance(argument, int):
                argument = Rows(None, argument)
            assert isinstance(argument, Rows)
            return self._row_slots.ctypes.data + 8 * self._rows.setdefault(argument, len(self._rows))
        if kind == "run_address":
            return self._run_address(argument, thread)
        if isinstance(argument, int | float):
            return argument
        return self._address(argument, thread)

    def _run_address(self, argument: Argument, thread: int) -> int:
        """The slot of a state's address, which `bind` fills; of what never moves, a slot filled here."""
        base = _stored(argument) if isinstance(argument, Node) else None
        if base is not None and base.op is state_leaf:
            slot = self._states[base.name]
        else:
            slot = len(self._states) + self._n_fixed
            self._n_fixed += 1
            self._state_slots[slot] = self._address(argument, thread)
        return int(self._state_slots.ctypes.data) + 8 * slot

    def _address(self, argument: Argument, thread: int) -> int:
        if isinstance(argument, Scratch):
            return int(self._scratch[thread].ctypes.data)
        if isinstance(argument, Workspace):
            return int(self._arena.ctypes.data) + self._plan.workspaces[argument.node]
        if isinstance(argument, Constant):
            if argument not in self._made:
                self._made[argument] = np.ascontiguousarray(argument.make(self._weights))
            return int(self._made[argument].ctypes.data)
        if not isinstance(argument, Node):
            raise BackendError(f"no address for {argument!r}")
        base = _stored(argument)
        fixed = self._fixed(base)
        if fixed is not None:
            return int(fixed.ctypes.data)
        own = thread * one_copy_bytes(base) if replicated(base) else 0
        return int(self._arena.ctypes.data) + self._plan.offsets[base] + own


def _stored(node: Node) -> Node:
    """The node that owns the storage: views are seen through, a written state is the state."""
    node = viewed(node)
    while node.op.writes is not None:
        node = viewed(node.inputs[node.op.writes])
    return node


def fill_blocks(kernel: Kernel, step: Step, places: Places) -> list[Array]:
    """The parameter block of each thread for one kernel call."""
    return [
        kernel.block(
            **{name: places.slot(kind, step.arguments[name], thread) for name, kind in kernel.parameters}
        )
        for thread in range(places.n_threads)
    ]
