"""The programs of a model on a device, compiled when first asked for: one token; many; many with all logits.

Knows graphs, bounds and options; nothing of ids, cells or runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from graphml.backend import Backend, Device, Progress
from graphml.compiler.compile import Compiled, compile_graph
from graphml.compiler.multi_device import PartsDevice
from graphml.compiler.options import CompileOptions
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.loading.unused_tensors import tell_unused
from graphml.runtime.programs.model_graphs import ModelGraphs
from graphml.runtime.programs.open_lock import OpenLock
from graphml.runtime.programs.step_inputs import graph_arrays
from graphml.system.pages import out_of_memory

LOG = logging.getLogger(__name__)


class CompiledPrograms:
    """The programs of one model on one device, each kept by its bounds and options.

    options: how programs are compiled where a call says nothing else. weights: name -> array of the file's
    tensors, as the graph's dtypes hold them. open_lock: held by each call, so that nobody closes the device.
    seconds: that building and compiling took so far.
    """

    def __init__(
        self,
        graphs: ModelGraphs,
        backend: Backend,
        device: Device,
        n_batch: int,
        options: CompileOptions,
        progress: Progress,
        open_lock: OpenLock,
    ) -> None:
        self.graphs, self.backend, self.device = graphs, backend, device
        self.n_batch, self.options, self._progress, self._open_lock = n_batch, options, progress, open_lock
        self.file = graphs.file
        self.weights = graph_arrays(self.file)
        self._mapped = any(tensor.mapped for tensor in self.file.tensors.values())
        self._state_graphs: dict[tuple[int, str], Graph] = {}
        self.seconds = 0.0
        self._programs: dict[tuple[int, int, int, bool, CompileOptions], Compiled] = {}

    def compiled(
        self,
        max_tokens: int,
        max_outputs: int,
        options: CompileOptions | None = None,
        max_sequences: int = 1,
        encoder: bool = False,
    ) -> Compiled:
        """The program for these bounds, compiled when first asked for; options None: the executor's own.

        encoder: the one that reads source texts, of a model that `encodes`.
        """
        chosen = self.options if options is None else options
        key = max_tokens, max_outputs, max_sequences, encoder, chosen
        compiled = self._programs.get(key)
        if compiled is not None:
            return compiled  # of an open model: closing it lets go of all
        with self._open_lock.opened():
            if key not in self._programs:
                self.check_file()
                start = time.perf_counter()
                top_k = (
                    self.backend.reads_back and max_outputs <= max_sequences
                )  # not where logits of all are outputs
                if encoder:
                    graph = self.graphs.build_encoder(max_tokens, max_sequences)
                else:
                    sizes = max_tokens, max_outputs, max_sequences
                    graph = self.graphs.build(*sizes, chosen.pooling, top_k=top_k, hidden=chosen.hidden)
                taken = time.perf_counter() - start
                tell_unused(self.file.path, self.graphs.built_by, self.graphs.unused_tensors)
                try:
                    self._programs[key] = compile_graph(
                        graph, self.backend, self.device, self.weights, self._progress, chosen, taken
                    )
                except MemoryError as error:
                    raise self.out_of_memory_of("a program for steps", max_tokens, error) from None
                seconds = time.perf_counter() - start
                self.seconds += seconds
                LOG.debug("%s: compiled for %d tokens in %.3f s", self.file.path, max_tokens, seconds)
            return self._programs[key]

    def compiled_for(
        self, n_tokens: int, n_sequences: int, all_logits: bool = False, options: CompileOptions | None = None
    ) -> Compiled:
        """The program for a step of so many tokens on a cache of so many sequences.

        A step of no more tokens than sequences has one of its own; all longer ones share another.
        """
        few = n_tokens <= n_sequences
        chosen = self.options if options is None else options
        every = not few and (all_logits or self.graphs.rows(False, chosen.pooling) == "all")
        max_outputs = self.n_batch if every else n_sequences
        return self.compiled(n_sequences if few else self.n_batch, max_outputs, chosen, n_sequences)

    def forget(self, options: CompileOptions | None = None) -> None:
        """Let go of the programs made so far, or of those of some options; who has one can run it."""
        with self._open_lock.lock:
            kept = {} if options is None else self._programs
            self._programs = {key: program for key, program in kept.items() if key[-1] != options}

    def state_graph(self, n_sequences: int, options: CompileOptions | None = None) -> Graph:
        """The graph whose states a cache of so many sequences has.

        It is compiled only where that decides on which device a state is: a first prompt need not wait for
        the program of single tokens.
        """
        chosen = self.options if options is None else options
        with self._open_lock.opened():
            if isinstance(self.device, PartsDevice):
                return self.compiled_for(1, n_sequences, options=options).graph
            key = n_sequences, chosen.pooling
            if key not in self._state_graphs:
                self.check_file()
                self._state_graphs[key] = self.graphs.build(
                    n_sequences, n_sequences, n_sequences, chosen.pooling
                )
            return self._state_graphs[key]

    def state_leaves(self, graph: Graph, max_sequences: int = 1) -> Iterable[Node]:
        """The states of a step's graph and, of a model that `encodes`, of its encoder's."""
        graphs = [graph] + ([self.graphs.build_encoder(1, max_sequences)] if self.graphs.encodes else [])
        return {name: node for graph in graphs for name, node in graph.leaves("state").items()}.values()

    def check_file(self) -> None:
        """WeightsError where the file of the weights has changed, UsageError where it was closed."""
        with self._open_lock.opened():  # else a close meanwhile gives its descriptor to another file
            if self._mapped:
                self.file.check_unchanged()

    def out_of_memory_of(self, what: str, n_tokens: int, error: MemoryError) -> BackendError:
        """The error for memory that there is not, with what helps."""
        of = f"{self.file.path}: {what} of {n_tokens} token{'s' if n_tokens > 1 else ''}"
        return out_of_memory(of, error, f"give a smaller n_batch (it is {self.n_batch}), or fewer threads")

    def clear(self) -> None:
        """Let go of all programs and weights, before the device is closed."""
        self._programs.clear()
        self.weights.clear()
