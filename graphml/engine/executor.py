"""Runs an open model: keeps its programs (one token; many tokens; many with all logits) and feeds them.

Knows ids, positions and cells; nothing of text or sampling.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.backend import Backend, Device, Progress, State, no_progress
from graphml.engine.architecture import EMBEDDING, Architecture, Tensors, described
from graphml.engine.cache import PagedCache
from graphml.engine.compile import DEFAULT, Compiled, CompileOptions, compile_graph, prepare
from graphml.errors import ArchitectureError, GraphError, UsageError
from graphml.ir.dtype import dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.weights import ModelFile, Tensor

BLOCK_SIZE = 32
CACHE_DTYPES = ("f16", "f32", "bf16")
LOG = logging.getLogger(__name__)


def as_graph_array(tensor: Tensor) -> Array:
    """A tensor's bytes as the graph holds its dtype, without a copy."""
    kind = dtype(tensor.dtype)
    if kind.numpy is not None:
        return tensor.data.view(kind.numpy).reshape(tensor.shape)
    return tensor.data.reshape(*tensor.shape[:-1], -1)


class Executor:
    """The programs of one model on one device.

    n_batch: tokens of the longest step; cache_dtype: how keys and values are kept; options: how programs are
    compiled where a call says nothing else. Several sessions may share
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
        options: CompileOptions = DEFAULT,
    ) -> None:
        if cache_dtype not in CACHE_DTYPES:
            raise UsageError(f"kv: wanted one of {', '.join(CACHE_DTYPES)}; got {cache_dtype!r}")
        self.file, self.architecture, self.config = file, architecture, config
        self.backend, self.device = backend, device
        self.n_batch, self.cache_dtype, self.options = n_batch, cache_dtype, options
        self.unused_tensors: list[str] = []
        self._progress = progress
        self._weights = {name: as_graph_array(tensor) for name, tensor in file.tensors.items()}
        self._programs: dict[tuple[int, int, CompileOptions], Compiled] = {}
        self.lock = threading.RLock()
        self.closed = False

    def build(self, max_tokens: int, max_outputs: int) -> Graph:
        """The graph of one step, as the architecture builds it."""
        g = Builder(max_tokens, max_outputs, max_cells=self.max_cells, block_size=BLOCK_SIZE,
                    cache_dtype=self.cache_dtype)  # fmt: skip
        weights = Tensors(g, self.file.tensors)
        try:
            logits = self.architecture.build(g, self.config, weights)
            self._check_logits(logits)
            graph = g.finish(logits=logits)
        except (ArchitectureError, GraphError) as error:
            raise ArchitectureError(f"{self.file.path}: {error}") from None
        except Exception as error:  # an architecture may be a stranger's file
            raise ArchitectureError(f"{self.file.path}: {self._built_by}: {described(error)}") from error
        self.unused_tensors = weights.unused()
        return graph

    @property
    def _built_by(self) -> str:
        return f"architecture {self.architecture.name!r}"

    def _check_logits(self, logits: Any) -> None:
        """A row of logits for each id that can be embedded: who samples one feeds it back."""
        if not isinstance(logits, Node):
            raise ArchitectureError(f"{self._built_by}: build gave {logits!r}; wanted the node of the logits")
        embedding = self.file.tensors.get(EMBEDDING)
        if embedding is not None and logits.shape[-1] != embedding.shape[0]:
            raise ArchitectureError(
                f"wanted logits for the {embedding.shape[0]} rows of {EMBEDDING}; got {logits.type}"
            )

    @property
    def max_cells(self) -> int:
        """Cells of the longest context that programs are compiled for."""
        return 1 << 20

    @property
    def weights(self) -> Mapping[str, Array]:
        """Name -> array of the file's tensors, as the graph's dtypes hold them."""
        return self._weights

    def compiled(self, max_tokens: int, max_outputs: int, options: CompileOptions | None = None) -> Compiled:
        """The program for these bounds, compiled when first asked for; options None: the executor's own."""
        chosen = self.options if options is None else options
        with self.lock:
            key = max_tokens, max_outputs, chosen
            if key not in self._programs:
                start = time.perf_counter()
                graph = self.build(max_tokens, max_outputs)
                taken = time.perf_counter() - start
                self._tell_unused()
                self._programs[key] = compile_graph(
                    graph, self.backend, self.device, self._weights, self._progress, chosen, taken
                )
            return self._programs[key]

    def forget(self, options: CompileOptions | None = None) -> None:
        """Let go of the programs made so far, or of those of some options; who has one can run it."""
        with self.lock:
            kept = {} if options is None else self._programs
            self._programs = {key: made for key, made in kept.items() if key[-1] != options}

    def _tell_unused(self) -> None:
        """Say once which tensors are left out: the file may mean another computation than the one built."""
        if self.unused_tensors and not self._programs:
            names = self.unused_tensors
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            LOG.warning(
                "%s: %s does not use %s%s", self.file.path, self._built_by, ", ".join(names[:8]), more
            )

    def arena_bytes(self) -> dict[str, int]:
        """Arena of the decode and prefill programs, from shapes alone."""
        sizes = {}
        for name, bound in (("decode", 1), ("prefill", self.n_batch)):
            sizes[name] = prepare(self.build(bound, 1), self.backend, self.device, self.options)[1].peak
        return sizes

    def state(self, cache: PagedCache, options: CompileOptions | None = None) -> State:
        """Fresh arrays for a cache."""
        graph = self.compiled(1, 1, options).graph
        return self.device.state(graph, {"C": cache.n_cells})

    def step(self, ids: Array, cache: PagedCache, state: State, all_logits: bool, sequence: int = 0) -> Array:
        """Append at most n_batch ids to a sequence: the last one's or all logits, good until the next."""
        return self.values(ids, cache, state, all_logits, sequence)["logits"]

    def values(
        self,
        ids: Array,
        cache: PagedCache,
        state: State,
        all_logits: bool,
        sequence: int = 0,
        options: CompileOptions | None = None,
    ) -> Mapping[str, Array]:
        """As `step`, every output of the program by name: the logits, and what the options keep."""
        count = len(ids)
        if not 0 < count <= self.n_batch:
            raise UsageError(f"step: wanted 1 to {self.n_batch} ids; got {count}")
        outputs = count if all_logits else 1
        max_tokens = 1 if count == 1 else self.n_batch
        with self.lock:
            program = self.compiled(max_tokens, 1 if outputs == 1 else self.n_batch, options).program
            positions, cells = cache.append(sequence, count)
            wanted = np.arange(count - outputs, count, dtype=np.int32)
            given = {"tokens": ids, "positions": positions, "cells": cells, "wanted": wanted}
            n_blocks = _feed(program.inputs, given, sequence, cache)
            dims = {"T": count, "O": outputs, "S": 1, "B": n_blocks, "C": cache.n_cells}
            try:
                return program.run(dims, state)
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


def _feed(feed: Mapping[str, Array], given: Mapping[str, Array], sequence: int, cache: PagedCache) -> int:
    """Write a step's inputs, as far as the graph has them; return how many blocks its table is wide."""
    for name, values in given.items():
        if name in feed:
            feed[name][: len(values)] = values
    if "sequences" in feed:
        feed["sequences"][: len(given["tokens"])] = sequence
    if "block_table" not in feed:
        return 0
    n_blocks = -(-cache.lengths[sequence] // cache.block_size)
    # The table is read up to the current length only, so no more of it is written.
    feed["block_table"][sequence, :n_blocks] = cache.table[sequence, :n_blocks]
    return int(feed["block_table"].shape[1])
