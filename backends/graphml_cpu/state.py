"""A session's state on the CPU: one array per state leaf, its pages taken as they are touched."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.ir.shape import resolve
from graphml.pages import fresh


def zeros(n_bytes: int) -> Array:
    """uint8 zeros on fresh pages, small ones: what is never touched takes no memory."""
    return fresh(n_bytes, large=False)


class CpuState:
    """See `graphml.backend.State`."""

    def __init__(self, graph: Graph, dims: Mapping[str, int]) -> None:
        self._arrays: dict[str, Array] = {}
        for name, node in graph.leaves("state").items():
            sizes = resolve(node.shape, dims)
            raw = zeros(prod(sizes[:-1]) * node.dtype.bytes_for(sizes[-1]))
            plain = raw if node.dtype.numpy is None else raw.view(node.dtype.numpy)
            self._arrays[name] = plain.reshape(*sizes[:-1], -1)

    @property
    def n_bytes(self) -> int:
        """Bytes of all states."""
        return sum(array.nbytes for array in self._arrays.values())

    def array(self, name: str) -> Array:
        """The array of one state."""
        return self._arrays[name]
