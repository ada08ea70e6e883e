"""How much memory a model needs on a device, from shapes alone.

It also reads weights into memory before they are needed. Nothing is compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from graphml.backend import Progress
from graphml.compiler.compile import prepare
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.shape import resolve
from graphml.runtime.programs.executor import Executor
from graphml.system.pages import main_memory
from graphml.weights import ModelFile

_READ_AHEAD_BYTES, _PAGE_BYTES = 16 << 20, 4096


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes. cache: keys and values of n_ctx tokens; recurrent: the states whose size no context changes.

    cache_windows: what of the cache layers have that keep no more than their window, chunk or longest step;
    cache_per_token: of the others. arena_decode, arena_prefill: intermediate results.
    """

    n_ctx: int
    weights: int
    cache: int
    cache_per_token: int
    cache_windows: int
    recurrent: int
    arena_decode: int
    arena_prefill: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.recurrent + self.arena_decode + self.arena_prefill

    def as_dict(self) -> dict[str, int]:
        """The figures by name."""
        return {**dataclasses.asdict(self), "total": self.total}


def memory_need(executor: Executor, n_ctx: int) -> MemoryNeed:
    """Return what one session of `n_ctx` tokens needs on the executor's device, weights included."""
    arena = arena_bytes(executor)
    sizes = executor.pinned_sizes(n_ctx)
    no_cells = dict.fromkeys(sizes, 0) | {"S": 1}
    recurrent = state_bytes(executor, no_cells)
    return MemoryNeed(
        n_ctx=n_ctx,
        weights=executor.file.n_weight_bytes,
        cache=state_bytes(executor, sizes) - recurrent,
        cache_per_token=state_bytes(executor, no_cells | {"C": 1}) - recurrent,
        cache_windows=state_bytes(executor, sizes | {"C": 0}) - recurrent,
        recurrent=recurrent,
        arena_decode=arena["decode"],
        arena_prefill=arena["prefill"],
    )


def arena_bytes(executor: Executor) -> dict[str, int]:
    """Return the bytes of the arenas of the `decode` and `prefill` programs; an encoder's join the latter."""
    graphs = {
        "decode": executor.build(1, 1, top_k=executor.has_top_k),
        "prefill": executor.build(executor.n_batch, 1, top_k=executor.has_top_k),
    }
    sizes = {name: _peak(executor, graph) for name, graph in graphs.items()}
    if executor.encodes:
        sizes["prefill"] += _peak(executor, executor.build_encoder(executor.n_batch))
    return sizes


def _peak(executor: Executor, graph: Graph) -> int:
    return prepare(graph, executor.backend, executor.device, executor.options).plan.peak


def state_bytes(executor: Executor, sizes: Mapping[str, int]) -> int:
    """Return the bytes of the states of such dimensions, see `Executor.pinned_sizes`."""
    n_sequences = sizes["S"]
    graph = executor.build(1, 1, n_sequences)
    return bytes_of_states(executor.programs.state_leaves(graph, n_sequences), sizes)


def bytes_of_states(leaves: Iterable[Node], sizes: Mapping[str, int]) -> int:
    """Return the bytes of some states of a cache of such sizes."""
    total = 0
    for node in leaves:
        *lead, last = resolve(node.shape, sizes)
        rows = 1
        for dim in lead:
            rows *= dim
        total += rows * node.dtype.bytes_for(last)
    return total


def read_ahead(file: ModelFile, progress: Progress) -> None:
    """Have the weights read from the disk now, where one can see it, and not within the first token.

    Only where they fit into half of the memory: more would push itself out again.
    """
    if file.n_weight_bytes > (main_memory() or 0) // 2:
        return
    done, since = 0, 0
    for tensor in (tensor for tensor in file.tensors.values() if tensor.mapped):
        for start in range(0, tensor.n_bytes, _READ_AHEAD_BYTES):
            part = tensor.data[start : start + _READ_AHEAD_BYTES]
            np.bitwise_or.reduce(part[::_PAGE_BYTES])
            since += part.nbytes
            if since >= _READ_AHEAD_BYTES:
                done, since = done + since, 0
                progress("mapping", done, file.n_weight_bytes)
    progress("mapping", file.n_weight_bytes, file.n_weight_bytes)
