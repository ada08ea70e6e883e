"""Runs an open model: feeds its programs (`compiled_programs`) ids, and returns what they compute.

Knows ids, positions and cells; nothing of text or sampling.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
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
    on_device,
)
from graphml.compiler.compile import Compiled
from graphml.compiler.options import DEFAULT, CompileOptions
from graphml.compiler.top_k_outputs import SAMPLED
from graphml.errors import UsageError
from graphml.former_names import FormerAttribute
from graphml.ir.cell_groups import CellGroup
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.loading.architecture import Architecture
from graphml.passes.cell_moves import CellMoves
from graphml.runtime.begun_step import Begun
from graphml.runtime.compiled_programs import CompiledPrograms
from graphml.runtime.model_graphs import ModelGraphs
from graphml.runtime.open_lock import OpenLock
from graphml.runtime.paged_cache import BLOCK_SIZE, PagedCache
from graphml.runtime.step_inputs import Settings, fill, write_factors
from graphml.weights import ModelFile


class Executor:
    """One model on one device.

    n_batch: tokens of the longest step; cache_dtype: how keys and values are kept; swa_full: layers that see
    a window keep all of them; options: how programs are compiled where a call says nothing else. Several
    sessions may share an executor from several threads; their steps take turns: the caller holds `lock` while
    it reads the logits of a step. Closing waits for what is being built, compiled or run; later calls are a
    UsageError. open_lock: of another executor on the same device, which closes both.
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
        open_lock: OpenLock | None = None,
    ) -> None:
        self.file, self.architecture, self.config = file, architecture, config
        self.graphs = ModelGraphs(file, architecture, config, cache_dtype, swa_full)
        self.n_batch, self.cache_dtype, self.options = n_batch, cache_dtype, options
        self._open_lock = open_lock or OpenLock(file.path)
        self.programs = CompiledPrograms(
            self.graphs, on_device(backend, device), device, n_batch, options, progress, self._open_lock
        )
        self.movers: dict[tuple[str, str, frozenset[str] | None], tuple[CellMoves, Program]] = {}
        self.lock = self._open_lock.lock
        self.n_steps = 0  # so far, of whatever session
        self.slot_groups: weakref.WeakSet[Any] = weakref.WeakSet()  # see `runtime.slot_group`
        self.head: Any = None  # see `runtime.prediction_head`

    @property
    def backend(self) -> Backend:
        """What the device can do, as far as its limits go."""
        return self.programs.backend

    @property
    def device(self) -> Device:
        """What runs the programs."""
        return self.programs.device

    @property
    def open_lock(self) -> OpenLock:
        """The lock of its device, for another executor on it."""
        return self._open_lock

    @property
    def closed(self) -> bool:
        """Whether its device and file were given back."""
        return self._open_lock.closed

    def build(
        self, max_tokens: int, max_outputs: int, max_sequences: int = 1, pooling: str = "", **more: bool
    ) -> Graph:
        """The graph of one step; see `ModelGraphs.build`."""
        with self._open_lock.opened():
            return self.graphs.build(max_tokens, max_outputs, max_sequences, pooling, **more)

    def build_encoder(self, max_tokens: int, max_sequences: int = 1) -> Graph:
        """The graph that reads source texts; see `ModelGraphs.build_encoder`."""
        with self._open_lock.opened():
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
    def max_chunk(self) -> int:
        """The most tokens of one text in a step: `n_batch`; 1 where plain ops use a state of each text."""
        _ = self.recurrent  # known when a graph was built
        return 1 if self.graphs.by_token else self.n_batch

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

    @property
    def has_top_k(self) -> bool:
        """Whether steps return the top ids of their rows beside the logits (`compiler.top_k_outputs`)."""
        return self.programs.backend.reads_back

    gives_best = FormerAttribute()

    @property
    def weights(self) -> Mapping[str, Array]:
        """Name -> array of the file's tensors, as the graph's dtypes hold them."""
        return self.programs.weights

    def compiled(
        self,
        max_tokens: int,
        max_outputs: int,
        options: CompileOptions | None = None,
        max_sequences: int = 1,
        encoder: bool = False,
    ) -> Compiled:
        """The program for these bounds, compiled when first asked for; see `CompiledPrograms.compiled`."""
        return self.programs.compiled(max_tokens, max_outputs, options, max_sequences, encoder)

    def state(self, cache: PagedCache, options: CompileOptions | None = None) -> State:
        """Fresh arrays for a cache."""
        count = cache.n_program(1)
        with self._open_lock.opened():
            graph = self.programs.state_graph(count, options)
            if self.encodes:  # the encoder writes what the decoder reads
                graph = Graph(tuple(self.programs.state_leaves(graph, count)), {})
            return self.device.state(graph, cache.sizes(self.cell_groups))

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
        self.check_chunks(map(len, ids.values()))
        programs, chosen = self.programs, self.options if options is None else options
        with self._open_lock.opened():
            if count > len(ids):
                programs.check_file()
            program = programs.compiled_for(count, cache.n_program(len(ids)), all_logits, chosen).program
            lengths = {sequence: cache.lengths[sequence] for sequence in ids}
            self.n_steps += 1
            try:
                which = self.graphs.rows(all_logits, chosen.pooling)
                dims = fill(program.inputs, ids, cache, which, settings)
                write_factors(program.inputs, chosen, count)
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
                    raise programs.out_of_memory_of("a step", count, error) from None
                raise

    def check_chunks(self, counts: Iterable[int]) -> None:
        """UsageError where a step has more tokens of one text than `max_chunk`."""
        most = max(counts, default=0)
        if most > 1 and most > self.max_chunk:
            raise UsageError(
                f"step: {self.architecture.name} has states of its own, which are read and written token by "
                f"token: wanted 1 token of each text; got {most}"
            )

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
        chosen = self.options if options is None else options
        with self._open_lock.opened():
            compiled = self.programs.compiled_for(1, len(cache.lengths), False, chosen)
            inputs, ahead = compiled.program.inputs, compiled.ahead
            assert ahead is not None
            length = cache.lengths[sequence]
            self.n_steps += 1
            try:
                ids = {sequence: np.array([token or 0], np.int32)}
                dims = fill(inputs, ids, cache, "last", {sequence: settings})
                write_factors(inputs, chosen, 1)
                fed = {"tokens": SAMPLED} if token is None else {}
                return Begun(self.n_steps, ahead.begin(dims, state, fed, outputs))
            except BaseException:
                cache.rewind(sequence, length)
                raise

    def close(self) -> None:
        """Give the device and the file back; no program can run any more. A second call does nothing."""
        with self.lock:
            if not self.closed:
                self._open_lock.closed = True
                self.programs.clear()
                self.movers.clear()
                if self.head is not None:
                    self.head.executor.programs.clear()  # who drafts with it may live longer
                    self.head = None
                self.device.close()
                self.file.close()
