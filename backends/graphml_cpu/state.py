"""A state on the CPU: one array per state leaf, its pages taken as they are touched."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from mmap import PAGESIZE

from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.ir.shape import resolve
from graphml.system.pages import LARGE_BYTES, fresh

CACHE_DIMENSIONS = 3


def zeros(n_bytes: int) -> Array:
    """uint8 zeros on fresh pages, small ones: what is never touched takes no memory."""
    return fresh(n_bytes, large=False)


class CpuState:
    """See `graphml.backend.State`. large: on large pages, which are not touched all at once.

    A state that may be a cache, [cell, head, d], has a row of zeros behind its array: what cells that there
    are not read as.
    """

    def __init__(self, graph: Graph, dims: Mapping[str, int], large: bool = False) -> None:
        self._arrays: dict[str, Array] = {}
        leaves = graph.leaves("state")
        for number, (name, node) in enumerate(leaves.items()):
            sizes = resolve(node.shape, dims)
            head = LARGE_BYTES * number // len(leaves) // PAGESIZE * PAGESIZE if large else 0
            n_bytes = prod(sizes[:-1]) * node.dtype.bytes_for(sizes[-1])
            row_of_zeros = n_bytes // max(sizes[0], 1) if len(sizes) == CACHE_DIMENSIONS else 0
            raw = fresh(n_bytes + row_of_zeros, large, head)[:n_bytes]
            plain = raw if node.dtype.numpy is None else raw.view(node.dtype.numpy)
            self._arrays[name] = plain.reshape(*sizes[:-1], -1)

    @property
    def n_bytes(self) -> int:
        """Bytes of all states."""
        return sum(array.nbytes for array in self._arrays.values())

    def array(self, name: str) -> Array:
        """The array of one state."""
        return self._arrays[name]
