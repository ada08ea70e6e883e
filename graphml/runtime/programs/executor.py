"""An open model on a device: its graphs, programs and weights, and the lock under which steps are computed.

Knows programs; nothing of sequences or steps, which are a `Runner`'s.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from graphml.backend import (
    Backend,
    DeterministicDevice,
    Device,
    Program,
    Progress,
    no_progress,
    on_device,
)
from graphml.compiler.compile import Compiled
from graphml.compiler.options import DEFAULT, CompileOptions
from graphml.errors import UsageError
from graphml.ir.cell_groups import CellGroup
from graphml.ir.graph import Graph
from graphml.ir.long_texts import LongerThan
from graphml.ir.op import Array
from graphml.loading.architecture import EMBEDDING, Architecture
from graphml.loading.diffusion import Diffusion, read_diffusion, shifts_logits
from graphml.loading.pooling import NO_OUTPUT
from graphml.passes.cell_moves import CellMoves
from graphml.runtime.blocks.window_ring import pinned_sizes
from graphml.runtime.programs.compiled_programs import CompiledPrograms
from graphml.runtime.programs.model_graphs import ModelGraphs
from graphml.runtime.programs.open_lock import OpenLock
from graphml.weights import ModelFile


class Executor:
    """One model on one device.

    n_vocab: ids that it knows.
    n_batch: tokens of the longest step; cache_dtype: how keys and values are kept; swa_full: layers that see
    a window keep all of them; options: how programs are compiled where a call says nothing else. Several
    sessions may share an executor from several threads; their steps take turns: whoever computes one holds
    `lock`. Closing waits for what is being built, compiled or run; later calls are a
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
        embedding = file.tensors.get(EMBEDDING)
        self.n_vocab: int = config.n_vocab if embedding is None else embedding.shape[0]
        self.graphs = ModelGraphs(file, architecture, config, cache_dtype, swa_full)
        self.n_batch, self.cache_dtype, self.options = n_batch, cache_dtype, options
        self.open_lock = open_lock or OpenLock(file.path)
        self.programs = CompiledPrograms(
            self.graphs, on_device(backend, device), device, n_batch, options, progress, self.open_lock
        )
        self.movers: dict[tuple[str, str, frozenset[str] | None], tuple[CellMoves, Program]] = {}
        self.lock = self.open_lock.lock
        self.n_steps = 0  # so far, of whatever session
        self.shared_rooms: weakref.WeakSet[Any] = weakref.WeakSet()  # see `runtime.sessions.shared_room`
        self.head: Any = None  # see `runtime.sessions.prediction_head`

    @property
    def backend(self) -> Backend:
        """What the device can do, as far as its limits go."""
        return self.programs.backend

    @property
    def device(self) -> Device:
        """What runs the programs."""
        return self.programs.device

    @property
    def closed(self) -> bool:
        """Whether its device and file were given back."""
        return self.open_lock.closed

    def build(
        self, max_tokens: int, max_outputs: int, max_sequences: int = 1, pooling: str = "", **more: bool
    ) -> Graph:
        """The graph of one step; see `ModelGraphs.build`."""
        with self.open_lock.opened():
            return self.graphs.build(max_tokens, max_outputs, max_sequences, pooling, **more)

    def build_encoder(self, max_tokens: int, max_sequences: int = 1) -> Graph:
        """The graph that reads source texts; see `ModelGraphs.build_encoder`."""
        with self.open_lock.opened():
            return self.graphs.build_encoder(max_tokens, max_sequences)

    @property
    def encodes(self) -> bool:
        """Whether the model has an encoder, which reads a source text before the decoder's first step."""
        return self.graphs.encodes

    @property
    def generates(self) -> bool:
        """Whether there are logits that mean something: not of an encoder, nor without an output matrix."""
        metadata = self.file.metadata
        return self.architecture.output == "logits" and not metadata.boolean(NO_OUTPUT, False)

    @property
    def denoises(self) -> bool:
        """Whether it is a diffusion model, whose answers are denoised and not continued token by token."""
        return self.architecture.diffusion is not None

    @property
    def longest(self) -> int:
        """Most tokens of a text: the model's context, of a diffusion model what one step computes."""
        n_ctx = int(self.config.n_ctx)
        return min(n_ctx, self.n_batch) if self.denoises else n_ctx

    @property
    def shifts_logits(self) -> bool:
        """Whether a diffusion model's file says that the logits of a token are in the row before its own."""
        return self.denoises and shifts_logits(self.file)

    @cached_property
    def diffusion(self) -> Diffusion | None:
        """What its file says of that; None for other models, WeightsError without a mask token."""
        return read_diffusion(self.file, self.architecture, self.n_vocab)

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
        device = self.device
        return device.order_of_sums if isinstance(device, DeterministicDevice) and self.deterministic else ""

    @property
    def long_inputs(self) -> Mapping[str, LongerThan]:
        """The inputs of steps that say which rows are of long texts; see `ir.long_texts`."""
        _ = self.recurrent  # known when a graph was built
        return self.graphs.long_inputs

    @property
    def cell_groups(self) -> tuple[CellGroup, ...]:
        """The groups of layers that keep keys and values in cells of their own."""
        _ = self.recurrent  # known when a graph was built
        return self.graphs.cell_groups

    def pinned_sizes(self, n_ctx: int, n_sequences: int = 1) -> dict[str, int]:
        """The dimensions of the states of so many pinned sequences (`graphml.runtime.sessions.pinned`)."""
        return pinned_sizes(self.cell_groups, n_ctx, self.n_batch, n_sequences)

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

    def with_caches(self, cache_dtype: str) -> Executor:
        """The same model on the same device, with keys and values that are kept so; for its sizes."""
        return Executor(
            self.file, self.architecture, self.config, self.backend, self.device, self.n_batch, cache_dtype,
            options=self.options, swa_full=self.graphs.swa_full, open_lock=self.open_lock,
        )  # fmt: skip

    def check_continues(self) -> None:
        """UsageError for a model whose tokens see later ones: it does not continue a text."""
        if not self.architecture.causal:
            instead = (
                "it is a diffusion model, of which sessions, chats and engines denoise answers"
                if self.denoises
                else "`eval` gives the logits of a whole text"
            )
            raise UsageError(
                f"generate: {self.architecture.name} does not continue a text token by token, for "
                f"its tokens see those after them; {instead}"
            )

    def close(self) -> None:
        """Give the device and the file back; no program can run any more. A second call does nothing."""
        with self.lock:
            if not self.closed:
                self.open_lock.closed = True
                self.programs.clear()
                self.movers.clear()
                if self.head is not None:
                    self.head.close()
                    self.head = None
                self.device.close()
                self.file.close()
