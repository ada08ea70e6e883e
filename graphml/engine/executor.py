"""Runs an open model: keeps its programs (one token; many tokens; many with all logits) and feeds them.

Knows ids, positions and cells; nothing of text or sampling.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from graphml.backend import Backend, Device, Progress, State, no_progress
from graphml.engine.architecture import Architecture, Tensors
from graphml.engine.cache import PagedCache
from graphml.engine.compile import Compiled, compile_graph, prepare
from graphml.errors import ArchitectureError, GraphError, UsageError
from graphml.ir.dtype import dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.weights import ModelFile, Tensor

BLOCK_SIZE = 32
CACHE_DTYPES = ("f16", "f32", "bf16")


def as_graph_array(tensor: Tensor) -> Array:
    """A tensor's bytes as the graph holds its dtype, without a copy."""
    kind = dtype(tensor.dtype)
    if kind.numpy is not None:
        return tensor.data.view(kind.numpy).reshape(tensor.shape)
    return tensor.data.reshape(*tensor.shape[:-1], -1)


class Executor:
    """The programs of one model on one device.

    n_batch: tokens of the longest step; cache_dtype: how keys and values are kept. Several sessions may share
    an executor from several threads; their steps take turns: who reads the logits of a step holds `lock`.
    """

    def __init__(
        self,
        file: ModelFile,
        architecture: Architecture,
        config: Any,
        backend: Backend,
        device: Device,
        n_batch: int = 512,
        cache_dtype: str = "f16",
        progress: Progress = no_progress,
    ) -> None:
        if cache_dtype not in CACHE_DTYPES:
            raise UsageError(f"kv: wanted one of {', '.join(CACHE_DTYPES)}; got {cache_dtype!r}")
        self.file, self.architecture, self.config = file, architecture, config
        self.backend, self.device = backend, device
        self.n_batch, self.cache_dtype = n_batch, cache_dtype
        self.unused_tensors: list[str] = []
        self._progress = progress
        self._weights = {name: as_graph_array(tensor) for name, tensor in file.tensors.items()}
        self._programs: dict[tuple[int, int], Compiled] = {}
        self.lock = threading.RLock()
        self.closed = False

    def build(self, max_tokens: int, max_outputs: int) -> Graph:
        """The graph of one step, as the architecture builds it."""
        g = Builder(max_tokens, max_outputs, max_cells=self.max_cells, block_size=BLOCK_SIZE,
                    cache_dtype=self.cache_dtype)  # fmt: skip
        weights = Tensors(g, self.file.tensors)
        try:
            graph = g.finish(logits=self.architecture.build(g, self.config, weights))
        except (ArchitectureError, GraphError) as error:
            raise ArchitectureError(f"{self.file.path}: {error}") from None
        self.unused_tensors = weights.unused()
        return graph

    @property
    def max_cells(self) -> int:
        """Cells of the longest context that programs are compiled for."""
        return 1 << 20

    def compiled(self, max_tokens: int, max_outputs: int) -> Compiled:
        """The program for these bounds, compiled when first asked for."""
        with self.lock:
            key = max_tokens, max_outputs
            if key not in self._programs:
                graph = self.build(max_tokens, max_outputs)
                self._programs[key] = compile_graph(
                    graph, self.backend, self.device, self._weights, self._progress
                )
            return self._programs[key]

    def arena_bytes(self) -> dict[str, int]:
        """Arena of the decode and prefill programs, from shapes alone."""
        sizes = {}
        for name, bound in (("decode", 1), ("prefill", self.n_batch)):
            sizes[name] = prepare(self.build(bound, 1), self.backend, self.device)[1].peak
        return sizes

    def state(self, cache: PagedCache) -> State:
        """Fresh arrays for a cache."""
        graph = self.compiled(1, 1).graph
        return self.device.state(graph, {"C": cache.n_cells})

    def step(self, ids: Array, cache: PagedCache, state: State, all_logits: bool, sequence: int = 0) -> Array:
        """Append at most n_batch ids to a sequence: the last one's or all logits, good until the next."""
        count = len(ids)
        if not 0 < count <= self.n_batch:
            raise UsageError(f"step: wanted 1 to {self.n_batch} ids; got {count}")
        outputs = count if all_logits else 1
        max_tokens = 1 if count == 1 else self.n_batch
        with self.lock:
            program = self.compiled(max_tokens, 1 if outputs == 1 else self.n_batch).program
            positions, cells = cache.append(sequence, count)
            feed = program.inputs
            feed["tokens"][:count] = ids
            feed["positions"][:count] = positions
            feed["sequences"][:count] = sequence
            feed["cells"][:count] = cells
            n_blocks = -(-cache.lengths[sequence] // cache.block_size)
            # The table is read up to the current length only, so no more of it is written.
            feed["block_table"][sequence, :n_blocks] = cache.table[sequence, :n_blocks]
            feed["wanted"][:outputs] = np.arange(count - outputs, count, dtype=np.int32)
            dims = {"T": count, "O": outputs, "S": 1, "B": feed["block_table"].shape[1], "C": cache.n_cells}
            try:
                return program.run(dims, state)["logits"]
            except BaseException:
                cache.rewind(sequence, int(positions[0]))
                raise

    def close(self) -> None:
        """Give the device and the file back; no program can run any more. A second call does nothing."""
        with self.lock:
            if not self.closed:
                self.closed = True
                self._programs.clear()
                self._weights.clear()
                self.device.close()
                self.file.close()
