"""Runs an open model: keeps its programs (one token; many tokens; many with all logits) and feeds them.

Knows ids, positions and cells; nothing of text or sampling.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphml.backend import (
    Backend,
    DeterministicDevice,
    Device,
    Program,
    Progress,
    State,
    no_progress,
)
from graphml.compiler.compile import Compiled, compile_graph
from graphml.compiler.multi_device import PartsDevice
from graphml.compiler.options import DEFAULT, CompileOptions
from graphml.compiler.top_k_outputs import SAMPLED
from graphml.errors import BackendError, UsageError
from graphml.former_names import FormerAttribute
from graphml.ir.cell_groups import CellGroup
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.limited_device import on_device
from graphml.loading.architecture import Architecture
from graphml.loading.pooling import Rows
from graphml.loading.unused_tensors import tell_unused
from graphml.pages import out_of_memory
from graphml.passes.cell_moves import CellMoves
from graphml.runtime.begun_step import Begun
from graphml.runtime.model_graphs import ModelGraphs
from graphml.runtime.paged_cache import BLOCK_SIZE, PagedCache
from graphml.runtime.step_inputs import Settings, fill, graph_arrays, write_factors
from graphml.weights import ModelFile


class Executor:
    """The programs of one model on one device.

    n_batch: tokens of the longest step; cache_dtype: how keys and values are kept; swa_full: layers that see
    a window keep all of them; options: how programs are compiled where a call says nothing else. Several
    sessions may share an executor from several threads; their steps take turns: the caller holds `lock` while
    it reads the logits of a step. Closing waits for what is being built, compiled or run; later calls are a
    UsageError.
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
        swa_full: bool = False,
    ) -> None:
        self.file, self.architecture, self.config = file, architecture, config
        self.graphs = ModelGraphs(file, architecture, config, cache_dtype, swa_full)
        self.backend, self.device = on_device(backend, device), device
        self.n_batch, self.cache_dtype, self.options = n_batch, cache_dtype, options
        self._progress = progress
        self._mapped = any(tensor.mapped for tensor in file.tensors.values())
        self._weights = graph_arrays(file)
        self._state_graphs: dict[tuple[int, str], Graph] = {}
        self._programs: dict[tuple[int, int, int, bool, CompileOptions], Compiled] = {}
        self.movers: dict[tuple[str, str, frozenset[str] | None], tuple[CellMoves, Program]] = {}
        self.lock = threading.RLock()
        self.n_steps = 0  # so far, of whatever session
        self.slot_groups: weakref.WeakSet[Any] = weakref.WeakSet()  # see `runtime.slot_group`
        self.closed = False
        self.head: Any = None  # see `runtime.prediction_head`

    def build(
        self, max_tokens: int, max_outputs: int, max_sequences: int = 1, pooling: str = "", **more: bool
    ) -> Graph:
        """The graph of one step; see `ModelGraphs.build`."""
        with self._open():
            return self.graphs.build(max_tokens, max_outputs, max_sequences, pooling, **more)

    def build_encoder(self, max_tokens: int, max_sequences: int = 1) -> Graph:
        """The graph that reads source texts; see `ModelGraphs.build_encoder`."""
        with self._open():
            return self.graphs.build_encoder(max_tokens, max_sequences)

    @property
    def encodes(self) -> bool:
        """Whether the model has an encoder, which reads a source text before the decoder's first step."""
        return self.graphs.encodes

    @property
    def recurrent(self) -> bool:
        """Whether sequences have a state that every token changes: it cannot be cut back."""
        if self.graphs.recurrent is None:
            self.build(1, 1)
        return bool(self.graphs.recurrent)

    @property
    def deterministic(self) -> bool:
        """Whether a text has the same logits, to the bit, whatever is beside it and however it is cut."""
        return isinstance(self.device, DeterministicDevice) and self.device.deterministic

    @property
    def order_of_sums(self) -> str:
        """What decides the bits of keys and values where the model is `deterministic`; "" where it is not."""
        return str(self.backend.describe().get("instruction set", "")) if self.deterministic else ""

    @property
    def cell_groups(self) -> tuple[CellGroup, ...]:
        """The groups of layers that keep keys and values in cells of their own."""
        _ = self.recurrent  # known when a graph was built
        return self.graphs.cell_groups

    def cache(self, n_ctx: int, n_sequences: int = 1, apart: bool = False) -> PagedCache:
        """A cache for so many sequences of `n_ctx` tokens; windowed layers keep no more than they see."""
        kinds = self.recurrent, self.encodes, self.cell_groups
        return PagedCache(n_ctx, BLOCK_SIZE, n_sequences, *kinds, self.n_batch, apart)

    @property
    def unused_tensors(self) -> list[str]:
        """Tensors of the file that the graph built last does not use."""
        return self.graphs.unused_tensors

    @property
    def pooling(self) -> str:
        """The file's kind of pooling (`graphml.loading.pooling.POOLINGS`); "none" where it says nothing."""
        return self.graphs.pooling

    def _rows(self, all_logits: bool, options: CompileOptions | None) -> Rows:
        """Which rows of each sequence a step gives."""
        return self.graphs.rows(all_logits, (self.options if options is None else options).pooling)

    @property
    def has_top_k(self) -> bool:
        """Whether steps return the top ids of their rows beside the logits (`compiler.top_k_outputs`)."""
        return self.backend.reads_back

    gives_best = FormerAttribute()

    @property
    def weights(self) -> Mapping[str, Array]:
        """Name -> array of the file's tensors, as the graph's dtypes hold them."""
        return self._weights

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
        with self._open():
            key = max_tokens, max_outputs, max_sequences, encoder, chosen
            if key not in self._programs:
                self.check_file()
                start = time.perf_counter()
                top_k = self.has_top_k and max_outputs <= max_sequences  # not where logits of all are outputs
                if encoder:
                    graph = self.build_encoder(max_tokens, max_sequences)
                else:
                    sizes = max_tokens, max_outputs, max_sequences
                    graph = self.build(*sizes, chosen.pooling, top_k=top_k, hidden=chosen.hidden)
                taken = time.perf_counter() - start
                tell_unused(self.file.path, self.graphs.built_by, self.unused_tensors)
                try:
                    self._programs[key] = compile_graph(
                        graph, self.backend, self.device, self._weights, self._progress, chosen, taken
                    )
                except MemoryError as error:
                    raise self._out_of_memory("a program for steps", max_tokens, error) from None
            return self._programs[key]

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Within, nobody closes the executor; UsageError where somebody has."""
        with self.lock:
            if self.closed:
                raise UsageError(f"{self.file.path}: the model was closed")
            yield

    def check_file(self) -> None:
        """WeightsError where the file that weights are read from has changed; before programs and prompts."""
        if self._mapped:
            self.file.check_unchanged()

    def forget(self, options: CompileOptions | None = None) -> None:
        """Let go of the programs made so far, or of those of some options; who has one can run it."""
        with self.lock:
            kept = {} if options is None else self._programs
            self._programs = {key: made for key, made in kept.items() if key[-1] != options}

    def state_graph(self, n_sequences: int, options: CompileOptions | None = None) -> Graph:
        """The graph whose states a cache of so many sequences has.

        It is compiled only where that decides on which device a state is: a first prompt need not wait for
        the program of single tokens.
        """
        chosen = self.options if options is None else options
        with self._open():
            if isinstance(self.device, PartsDevice):
                return self.compiled_for(1, n_sequences, options=options).graph
            key = n_sequences, chosen.pooling
            if key not in self._state_graphs:
                self.check_file()
                self._state_graphs[key] = self.build(n_sequences, n_sequences, n_sequences, chosen.pooling)
            return self._state_graphs[key]

    def state_leaves(self, graph: Graph, max_sequences: int = 1) -> Iterable[Node]:
        """The states of a graph by `build` and, of a model that `encodes`, of its encoder's."""
        graphs = [graph] + ([self.build_encoder(1, max_sequences)] if self.encodes else [])
        return {name: node for one in graphs for name, node in one.leaves("state").items()}.values()

    def state(self, cache: PagedCache, options: CompileOptions | None = None) -> State:
        """Fresh arrays for a cache."""
        count = cache.n_program(1)
        with self._open():
            graph = self.state_graph(count, options)
            if self.encodes:  # the encoder writes what the decoder reads
                graph = Graph(tuple(self.state_leaves(graph, count)), {})
            return self.device.state(graph, cache.sizes(self.cell_groups))

    def compiled_for(
        self, n_tokens: int, n_sequences: int, all_logits: bool = False, options: CompileOptions | None = None
    ) -> Compiled:
        """The program for a step of so many tokens on a cache of so many sequences.

        A step of no more tokens than sequences has one of its own; all longer ones share another.
        """
        few = n_tokens <= n_sequences
        every = self._rows(all_logits, options) == "all"
        max_outputs = self.n_batch if every and not few else n_sequences
        return self.compiled(n_sequences if few else self.n_batch, max_outputs, options, n_sequences)

    def step(self, ids: Array, cache: PagedCache, state: State, all_logits: bool, sequence: int = 0) -> Array:
        """Append at most n_batch ids to a sequence: the last one's or all logits, good until the next.

        Of an encoder, its embeddings.
        """
        return self.values({sequence: ids}, cache, state, all_logits)[self.architecture.output]

    def values(
        self,
        ids: Mapping[int, Array],
        cache: PagedCache,
        state: State,
        all_logits: bool = False,
        options: CompileOptions | None = None,
        settings: Settings | None = None,
    ) -> Mapping[str, Array]:
        """Append ids to sequences, at most n_batch in all: every output of the program by name.

        Those are the logits or embeddings, and what the options keep. Rows are in the order of `ids`: logits
        of each sequence's last token, or of all. Embeddings by the mean have a row for each of the cache's
        sequences, by number. settings: how tokens are sampled, where the program `has_top_k`.
        """
        count = sum(map(len, ids.values()))
        if not 0 < count <= self.n_batch or not all(map(len, ids.values())):
            raise UsageError(f"step: wanted 1 to {self.n_batch} ids, some of each sequence; got {count}")
        with self._open():
            if count > len(ids):
                self.check_file()
            program = self.compiled_for(count, cache.n_program(len(ids)), all_logits, options).program
            lengths = {sequence: cache.lengths[sequence] for sequence in ids}
            self.n_steps += 1
            try:
                dims = fill(program.inputs, ids, cache, self._rows(all_logits, options), settings)
                write_factors(program.inputs, self.options if options is None else options, count)
                if cache.states is None:
                    return program.run(dims, state)
                right = cache.states.begin(lengths)
                outputs = program.run(dims, state)
                cache.states.end(right, cache.lengths)
                return outputs
            except BaseException as error:
                for sequence, length in lengths.items():
                    cache.rewind(sequence, length)
                if isinstance(error, MemoryError):
                    raise self._out_of_memory("a step", count, error) from None
                raise

    def begin(
        self,
        sequence: int,
        token: int | None,
        cache: PagedCache,
        state: State,
        settings: Sequence[float],
        outputs: Sequence[str],
        options: CompileOptions | None = None,
    ) -> Begun:
        """Submit a step of one token, which the device may begin after all steps before it are done.

        token: None takes what the step before, submitted by this method, has sampled: the caller makes sure
        that no other came in between (`n_steps`). settings: `device_settings` of this step. outputs: those
        that are read. Only for a program that runs `ahead`, of a model that is not `recurrent`.
        """
        with self._open():
            compiled = self.compiled_for(1, len(cache.lengths), False, options)
            inputs, ahead = compiled.program.inputs, compiled.ahead
            assert ahead is not None
            length = cache.lengths[sequence]
            self.n_steps += 1
            try:
                ids = {sequence: np.array([token or 0], np.int32)}
                dims = fill(inputs, ids, cache, "last", {sequence: settings})
                write_factors(inputs, self.options if options is None else options, 1)
                fed = {"tokens": SAMPLED} if token is None else {}
                return Begun(self.n_steps, ahead.begin(dims, state, fed, outputs))
            except BaseException:
                cache.rewind(sequence, length)
                raise

    def _out_of_memory(self, what: str, n_tokens: int, error: MemoryError) -> BackendError:
        of = f"{self.file.path}: {what} of {n_tokens} token{'s' if n_tokens > 1 else ''}"
        return out_of_memory(of, error, f"give a smaller n_batch (it is {self.n_batch}), or fewer threads")

    def close(self) -> None:
        """Give the device and the file back; no program can run any more. A second call does nothing."""
        with self.lock:
            if not self.closed:
                self.closed = True
                self._programs.clear()
                self.movers.clear()
                self.head = None
                self._weights.clear()
                self.device.close()
                self.file.close()
