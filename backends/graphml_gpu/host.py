"""Nodes that no kernel runs: worked out in NumPy between two stretches of dispatches.

Knows where values lie on the device, to fetch them and to put results there; and rows of 8 bits in both
forms, as `graphml.ir.activation_blocks` and as the kernels have them (`products/int8_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

import numpy as np

from graphml.backend.node_values import storage_of
from graphml.ir.activation_blocks import ACTIVATIONS, rounded_scales
from graphml.ir.interpreter import evaluate, together
from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.ops.leaf import input_leaf, state_leaf
from graphml.ir.shape import resolve
from graphml_gpu.dispatch import NodeResult
from graphml_gpu.driver import Range
from graphml_gpu.memory import Memory
from graphml_gpu.places import GpuPlaces
from graphml_gpu.state import GpuState

Missing = tuple[Node, Type, Range]
"""A value, or a part of one, that has to be read from the device: its type, and where it is."""


@dataclass(eq=False)
class Mark:
    """Stands for a run where its values must not be kept. asked: whether somebody waits for one, or has."""

    asked: bool = False


class Host:
    """The values of one run in main memory: fetched from the device once, or made here."""

    def __init__(
        self, memory: Memory, places: GpuPlaces, dims: Mapping[str, int], state: GpuState | None
    ) -> None:
        self._memory, self._places, self._dims, self._state = memory, places, dims, state
        self._values: dict[Node, Array] = {}
        self.mark = Mark()

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by who uses the device."""
        return self._memory.lock

    def has(self, node: Node) -> bool:
        """Whether a value needs nothing from the device any more."""
        base = storage_of(node)
        return base in self._values or base.op is input_leaf or self._places.fixed(base) is not None

    def fetch(self, nodes: Iterable[Node]) -> None:
        """Read what these values need from the device, all at once."""
        ranges = self.missing(nodes)
        if ranges:
            self.keep(ranges, self._memory.driver.read([where for _, _, where in ranges]))

    def missing(self, nodes: Iterable[Node]) -> list[Missing]:
        """What has to be read for these values: of each part its node, type and range."""
        self.mark.asked = True
        ranges: list[Missing] = []
        for base in dict.fromkeys(storage_of(node) for node in nodes):
            if base in self._values or base.op in (input_leaf, state_leaf):
                continue
            if self._places.fixed(base) is not None:
                continue
            parts = base.type.parts
            for i, kind in enumerate(parts or (base.type,)):
                buffer, start, _ = self._places.range(NodeResult(base, i) if parts else base, self._state)
                ranges.append((base, kind, (buffer, start, -(-self._size(kind) // 4) * 4)))
        return ranges

    def keep(self, ranges: Sequence[Missing], read: Sequence[Array]) -> None:
        """Have values that were `missing`; read: what their ranges hold."""
        by_base: dict[Node, list[Array]] = {}
        for (base, kind, _), raw in zip(ranges, read, strict=True):
            by_base.setdefault(base, []).append(self._shaped(kind, raw))
        for base, arrays in by_base.items():
            self._values[base] = together(arrays) if base.type.parts else arrays[0]

    def value(self, node: Node) -> Array:
        """A value that `fetch` was asked for, as the reference has it."""
        if node.op.view:
            return evaluate(node, {node.inputs[0]: self.value(node.inputs[0])})
        base = storage_of(node)
        if base.op is state_leaf:
            assert self._state is not None
            return self._state.peek(base.name)
        if base.op is input_leaf:
            return self._places.inputs.arrays[base.name][tuple(map(slice, self._array_shape(base.type)))]
        fixed = self._places.fixed(base)
        return self._values[base] if fixed is None else fixed

    def run(self, nodes: Sequence[Node], wanted: Callable[[Node], bool]) -> None:
        """Work out nodes; those that a later dispatch wants are put on the device."""
        mine = set(nodes)
        self.fetch(source for node in nodes for source in node.inputs if storage_of(source) not in mine)
        for node in nodes:
            self._run(node, wanted(node))

    def _run(self, node: Node, wanted: bool) -> None:
        if node.op.writes is not None:
            assert self._state is not None
            self._state.array(
                storage_of(node.inputs[node.op.writes]).name
            )  # what is changed in the array goes to the device
        result = evaluate(node, {source: self.value(source) for source in node.inputs})
        if node.op.is_write:
            return
        self._values[node] = result
        if wanted:
            parts = node.type.parts
            for i in range(len(parts) or 1):
                buffer, start, _ = self._places.range(NodeResult(node, i) if parts else node, self._state)
                array = result[i] if parts else result
                packed = (parts[i] if parts else node.type).dtype.name == INT8_ROWS
                data = np.ascontiguousarray(to_planes(array) if packed else array)
                self._memory.write(buffer, start, data.reshape(-1).view(np.uint8))

    def _array_shape(self, kind: Type) -> tuple[int, ...]:
        """The shape of the array: the last dimension of formats is counted in bytes."""
        *lead, last = resolve(kind.shape, self._dims) or (1,)
        return (*lead, last if kind.dtype.numpy is not None else kind.dtype.bytes_for(last))

    def _size(self, kind: Type) -> int:
        item = 1 if kind.dtype.numpy is None else kind.dtype.numpy.itemsize
        return prod(self._array_shape(kind)) * item

    def _shaped(self, kind: Type, raw: Array) -> Array:
        raw = raw[: self._size(kind)]
        plain = raw if kind.dtype.numpy is None else raw.view(kind.dtype.numpy)
        shaped = plain.reshape(self._array_shape(kind) if kind.shape else ())
        return from_planes(shaped) if kind.dtype.name == INT8_ROWS else shaped


INT8_ROWS = ACTIVATIONS
"""The dtype whose values are in planes on a device."""
_WORDS = 9


def to_planes(rows: Array) -> Array:
    """Blocks of 36 bytes (d, 32 numbers; uint8 [..., groups * 36]) to nine planes of a word each."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 4 * _WORDS)
    numbers = np.ascontiguousarray(blocks[..., 4:])
    totals = numbers.view(np.int8).sum(axis=-1, dtype=np.int32)[..., None].view(np.uint32) & 0x1FFF
    d = np.ascontiguousarray(blocks[..., :4]).view("<f4")
    bits = rounded_scales(np.where(np.isnan(d), np.float32(np.inf), d)).view(np.uint32)
    head = (bits << 1) | totals
    words = np.concatenate([numbers, head.astype("<u4").view(np.uint8)], axis=-1).view("<u4")
    return np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(np.uint8).reshape(rows.shape)


def from_planes(rows: Array) -> Array:
    """The way back; an infinite scale, that of a group with a NaN, becomes NaN."""
    words = rows.view("<u4").reshape(*rows.shape[:-1], _WORDS, -1)
    blocks = np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(np.uint8)
    head = np.ascontiguousarray(blocks[..., 32:]).view("<u4")
    d = ((head >> 1) & 0x7FFFF000).view(np.float32)
    d = np.where(np.isinf(d), np.float32(np.nan), d).astype("<f4")
    whole = np.concatenate([d.view(np.uint8), blocks[..., :32]], axis=-1)
    return whole.reshape(rows.shape)
