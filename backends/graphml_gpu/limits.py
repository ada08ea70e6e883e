"""Whether a device has room for a node's kernels: bindings, invocations, shared memory, groups, bytes.

A node that it has no room for is refused like one without a kernel, before anything is placed. Lowers a node
on trial; knows neither plans nor buffers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from math import prod
from typing import Any

from graphml.backend.node_values import storage_of
from graphml.ir.interpreter import depends_on
from graphml.ir.node import Node
from graphml.ir.op import Type, plain_bytes
from graphml.ir.ops.leaf import input_leaf, state_leaf
from graphml.ir.shape import Symbol, bounds
from graphml_gpu.bindings import ArgumentSpan, shared
from graphml_gpu.dispatch import Argument, DeviceView, Dispatch, GpuWorkspace, NodeResult, Shard
from graphml_gpu.driver import Facts, Groups
from graphml_gpu.language import Features, Specialised
from graphml_gpu.memory import cut
from graphml_gpu.node_support import GpuNodeSupport, computes, value_bytes


def unplaced(facts: Facts, features: Features) -> DeviceView:
    """What lowerings may know where no weight has been uploaded: a trial's context."""
    limit = min(facts.max_binding_bytes, facts.max_buffer_bytes)

    def shards(weight: Node) -> tuple[Shard, ...]:
        base = storage_of(weight)
        total, size = bounds(base.shape)[0], max(limit // max(_entry_bytes(base), 1), 1)
        return tuple(Shard(weight, first, count) for first, count in cut(total, size))

    return DeviceView(facts, features, shards, lambda node: None)


def _entry_bytes(weight: Node) -> int:
    """Bytes of one of the first dimension: a row, an expert."""
    return plain_bytes(Type(weight.dtype, (1, *weight.shape[1:])))


class DeviceSupport(GpuNodeSupport):
    """What a device runs: nodes that the backend has kernels for, and the device room for them."""

    def __init__(self, backend: str, facts: Facts, features: Features) -> None:
        super().__init__(backend)
        self._facts, self._features = facts, features
        self._refused: weakref.WeakKeyDictionary[Node, str | None] = weakref.WeakKeyDictionary()

    def refuses(self, node: Node) -> str | None:
        """See `GpuNodeSupport.refuses`."""
        if node not in self._refused:
            reason = super().refuses(node)
            if reason is None and computes(node):
                reason = no_room(node, self, self._facts, self._features)
            self._refused[node] = reason
        return self._refused[node]


def no_room(node: Node, support: GpuNodeSupport, facts: Facts, features: Features) -> str | None:
    """Why a device cannot run the kernels of a node, None where it can.

    There must be kernels for the node.
    """
    context = unplaced(facts, features)
    dims = {d.name: d.bound for n in (node, *node.inputs) for d in _dims(n) if isinstance(d, Symbol)}
    for dispatch in support.lower(node, context):
        kernel = dispatch.kernel.specialise(features, **dispatch.constants)
        memory = _Memory(dispatch)
        groups = dispatch.groups(dims) if callable(dispatch.groups) else dispatch.groups
        reason = (
            exceeds(shared(kernel, memory, facts.max_bindings, overlaps=True), facts)
            or too_many_groups(kernel, groups, facts)
            or _too_large(kernel, dispatch, support, facts)
            or _too_many_turns(kernel, dispatch, facts)
        )
        if reason is not None:
            return reason
    return None


def exceeds(kernel: Specialised, facts: Facts) -> str | None:
    """What a kernel has more of than a device; None: nothing."""
    wanted = (
        ("bindings", len(kernel.buffers), facts.max_bindings),
        ("invocations of a workgroup", prod(kernel.group), facts.max_group),
        ("bytes of shared memory", kernel.shared_bytes, facts.shared_bytes),
        *((f"invocations along {axis}", n, most)
          for axis, n, most in zip("xyz", kernel.group, facts.max_group_sizes, strict=True)),
    )  # fmt: skip
    return _first_over(kernel, wanted, facts)


def _too_many_turns(kernel: Specialised, dispatch: Dispatch, facts: Facts) -> str | None:
    """Why the loops of a dispatch would end too early; None also where that depends on the step."""
    turns, most = dispatch.turns, facts.loop_turns
    if callable(turns) or most is None or turns <= most:
        return None
    return f"kernel {kernel.name} makes {turns} turns of loops, and {facts.name} ends loops after {most}"


def too_many_groups(kernel: Specialised, groups: Groups, facts: Facts) -> str | None:
    """The same for the workgroups of a dispatch."""
    wanted = (
        (f"workgroups along {axis}", n, facts.max_groups) for axis, n in zip("xyz", groups, strict=True)
    )
    return _first_over(kernel, wanted, facts)


def _too_large(kernel: Specialised, dispatch: Dispatch, support: GpuNodeSupport, facts: Facts) -> str | None:
    wanted = (
        (f"bytes of `{name}`", _bytes(argument, support), facts.max_binding_bytes)
        for name, argument in dispatch.buffers.items()
    )
    return _first_over(kernel, wanted, facts)


def _first_over(kernel: Specialised, wanted: Any, facts: Facts) -> str | None:
    for what, n, most in wanted:
        if n > most:
            return f"the kernel {kernel.name} wants {n} {what}, {facts.name} has {most}"
    return None


def _bytes(argument: Argument, support: GpuNodeSupport) -> int:
    """Bytes of a value; of one row or expert of a weight that may be cut; 0 for what has its own check."""
    match argument:
        case Node():
            base = storage_of(argument)
            return 0 if base.op is state_leaf else value_bytes(base.type)
        case Shard():
            return _entry_bytes(storage_of(argument.node))
        case NodeResult():
            return value_bytes(argument.node.type.parts[argument.index])
        case GpuWorkspace():
            return support.workspace(argument.node) - argument.offset
    return 0


class _Memory:
    """What each argument of a dispatch will be in: see `bindings.shared`."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def __call__(self, name: str) -> ArgumentSpan | None:
        argument = self._dispatch.buffers[name]
        if isinstance(argument, GpuWorkspace | NodeResult):
            return ArgumentSpan("arena")
        if not isinstance(argument, Node):
            return None
        base = storage_of(argument)
        if base.op is input_leaf:
            return ArgumentSpan("inputs")
        return ArgumentSpan("arena") if base.op is not state_leaf and depends_on(base) else None


def _dims(node: Node) -> Iterator[Any]:
    for kind in node.type.parts or (node.type,):
        yield from kind.shape
