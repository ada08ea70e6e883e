"""The graphs of an open model: what its architecture builds for a step, with the outputs that are asked for.

Knows the file, the architecture and its configuration; nothing of devices, programs or ids.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

from graphml.compiler.top_k_outputs import candidates
from graphml.errors import ArchitectureError, UsageError
from graphml.ir.cache_types import cache_types
from graphml.ir.cell_groups import CellGroup, groups_among
from graphml.ir.cells import BLOCK_SIZE, MAX_CELLS
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.long_texts import LongerThan, long_inputs
from graphml.ir.node import Node
from graphml.ir.plain_states import INSTEAD, check_plain_states, described, plain_states
from graphml.ir.read_caches import as_states, caches_by_window
from graphml.ir.step import WrittenCache
from graphml.loading.architecture import EMBEDDING, Architecture, Keys, Tensors, blamed, check_logits
from graphml.loading.named_tensors import output_rows
from graphml.loading.pooling import LOGITS, ROWS, Rows, pooled, read_pooling
from graphml.loading.rank import Rank
from graphml.passes.control_vectors import layer_result
from graphml.passes.output_rows import leave_rows_out, with_outputs
from graphml.weights import ModelFile

LOG = logging.getLogger(__name__)
HIDDEN = "hidden"
"""The name of a step's hidden rows: an output, and an input of the layer that predicts further."""
DRAFTED_IDS = "d2t"
"""The tensor of a drafter that has logits of some ids alone: which ids these are, i64."""
_KEPT = 4  # graphs of a model that are kept; one has 3,000 nodes of half a kilobyte at most


def head_prefix(config: Any) -> str:
    """With what the names of tensors begin of the layer for multi-token prediction, behind the last one."""
    return f"blk.{config.n_layer}."


class ModelGraphs:
    """Builds the graphs of one model.

    cache_dtype: how keys and values are kept, as `ir.cache_types` writes it. swa_full: whether layers
    that see a window keep all tokens like the others. unused_tensors: those of the file that the graph built
    last does not use. recurrent: whether it has a state that every token changes, None before a graph was
    built. by_token: whether a step has one token of each text at most (`ir.plain_states`). cell_groups:
    layers that keep no more than they see, of the graph built last. is_head: whether the model is a layer for
    multi-token prediction alone, whose own hidden rows are an output, too. hidden_layers: whose inputs,
    joined, are the hidden rows; none: those of the logits. Set before a graph with hidden rows is built.
    reads: of each layer the caches of another model that it reads, and then writes none of its own.
    """

    def __init__(
        self,
        file: ModelFile,
        architecture: Architecture,
        config: Any,
        cache_dtype: str,
        swa_full: bool = False,
    ) -> None:
        self.file, self.architecture, self.config, self.cache_dtype = file, architecture, config, cache_dtype
        self.swa_full = swa_full
        self.cell_groups: tuple[CellGroup, ...] = ()
        self.long_inputs: Mapping[str, LongerThan] = {}
        self.unused_tensors: list[str] = []
        self.recurrent: bool | None = None
        self.by_token = False
        self.is_head = False
        self.hidden_layers: tuple[int, ...] = ()
        self.reads: tuple[WrittenCache, ...] = ()
        self._encoder_uses: set[str] = set()
        self._told = False  # of states that plain ops use
        self._latest: dict[tuple[object, ...], tuple[Graph, list[str]]] = {}
        self._check_cache_layers()

    def build(
        self,
        max_tokens: int,
        max_outputs: int,
        max_sequences: int = 1,
        pooling: str = "",
        *,
        top_k: bool = False,
        hidden: bool = False,
    ) -> Graph:
        """The graph of one step, as the architecture builds it.

        pooling, hidden: see `CompileOptions`; top_k: with `candidates` beside the logits. The last few graphs
        are kept: that of one token is asked for by its program, its states and the memory that it needs.
        """
        key = max_tokens, max_outputs, max_sequences, pooling, top_k, hidden, self.is_head
        known = self._latest.pop(key, None)
        graph, unused = known or self._build(max_tokens, max_outputs, max_sequences, pooling, top_k, hidden)
        self._latest[key] = graph, unused  # again the last one
        if len(self._latest) > _KEPT:
            self._latest.pop(next(iter(self._latest)), None)
        self.unused_tensors = list(unused)
        self.by_token = bool(plain_states(graph))
        self.recurrent = self.by_token or any(node.op.recurrent for node in graph.nodes)
        self.cell_groups = groups_among(graph.leaves("input"))
        self.long_inputs = long_inputs(graph.leaves("input"))
        return graph

    def _build(
        self, max_tokens: int, max_outputs: int, max_sequences: int, pooling: str, top_k: bool, hidden: bool
    ) -> tuple[Graph, list[str]]:
        """The graph, and the tensors of the file that it does not use."""
        g = self._builder(max_tokens, max_outputs, max_sequences)
        g.kept |= {layer: as_states(g, cache) for layer, cache in enumerate(self.reads)}
        if self.encodes and not self._encoder_uses:
            self.build_encoder(1)
        with blamed(self.file.path, self.built_by):
            weights = Tensors(g, self.file.tensors, used=set(self._encoder_uses))
            built = self.architecture.build(g, self.config, weights)
            full_graph = g.finish(**self._outputs(g, weights, built, pooling, top_k))
            at_once = not self.architecture.causal or self.architecture.output == "embeddings"
            self._check_states(full_graph, texts=at_once or bool(pooling))
            graph = leave_rows_out(full_graph, g.output_rows, g.n_tokens)
            if hidden:
                graph = with_outputs(graph, g.finish(**{HIDDEN: self._every_hidden(g, full_graph)}))
        unused = [] if self.is_head else weights.unused()
        return graph, [name for name in unused if not name.startswith(self._ahead)]

    def _builder(self, max_tokens: int, max_outputs: int, max_sequences: int) -> Builder:
        return Builder(
            max_tokens, max_outputs, max_sequences, MAX_CELLS, BLOCK_SIZE, self.cache_dtype,
            self.architecture.causal, windows=not self.swa_full,
        )  # fmt: skip

    def last_caches(self) -> Mapping[int, WrittenCache]:
        """Window -> the keys and values of the last layer that sees so many tokens; 0: that sees all."""
        g = self._builder(1, 1, 1)
        with blamed(self.file.path, self.built_by):
            built = self.architecture.build(g, self.config, Tensors(g, self.file.tensors))
        return caches_by_window(g.finish(built=built), g.kept.values())

    def _check_cache_layers(self) -> None:
        """UsageError for types of layers that the model does not have."""
        n_layer, layers = getattr(self.config, "n_layer", None), cache_types(self.cache_dtype).others
        if layers and n_layer is not None and max(layers) >= n_layer:
            raise UsageError(
                f"{self.file.path}: kv: wanted layers below {n_layer}, as the model has; got layer "
                f"{max(layers)}"
            )

    def build_encoder(self, max_tokens: int, max_sequences: int = 1) -> Graph:
        """The graph that reads source texts, of a model that `encodes`: gives their hidden rows [T, D]."""
        assert self.architecture.encode is not None
        g = Builder(
            max_tokens, max_tokens, max_sequences, MAX_CELLS, BLOCK_SIZE, self.cache_dtype,
            causal=False, caches="encoder",
        )  # fmt: skip
        with blamed(self.file.path, self.built_by):
            weights = Tensors(g, self.file.tensors)
            graph = g.finish(embeddings=self.architecture.encode(g, self.config, weights))
            self._check_states(graph, texts=True)
        self._encoder_uses = set(self.file.tensors) - set(weights.unused())
        return graph

    def _check_states(self, graph: Graph, texts: bool) -> None:
        """Refuse states without a meaning in the steps to come; warn once of those that make steps short.

        texts: whether all tokens of a text are read in one step.
        """
        check_plain_states(graph)
        for state, node in plain_states(graph).items():
            why = (
                f"{self.built_by}: {described(node)} uses the state {state.name!r}, of which each token of a "
                "step reads what was there before the step"
            )
            if texts or self.is_head:
                subject = "drafts have" if self.is_head else "a text that is read at once has"
                raise ArchitectureError(f"{why}; {subject} several tokens in a step. {INSTEAD}")
            if not self._told:
                consequence = "so prompts are read token by token, slowly"
                LOG.warning("%s: %s; %s. %s", self.file.path, why, consequence, INSTEAD)
            self._told = True

    @property
    def encodes(self) -> bool:
        """Whether the model has an encoder, which reads a source text before the decoder's first step."""
        return self.architecture.encode is not None

    @property
    def _ahead(self) -> tuple[str, ...]:
        """With what the names of tensors begin that another graph uses, for multi-token prediction."""
        return (head_prefix(self.config),) if self.architecture.ahead is not None else ()

    def _every_hidden(self, g: Builder, graph: Graph) -> Node:
        """The hidden rows of all tokens of a graph; an error where `build` has none."""
        if self.hidden_layers:
            users, width = graph.users(), self.file.tensors[EMBEDDING].shape[-1]
            return reduce(
                g.concat, [layer_result(users, i - 1, width, "draft_model") for i in self.hidden_layers]
            )
        rows = g.every_hidden
        if rows is None or rows.shape[0] != g.n_tokens:
            raise ArchitectureError(f"{self.built_by}: wanted logits made by weights.logits of all rows")
        return rows

    @property
    def built_by(self) -> str:
        """Who builds the graphs, as errors and warnings name it."""
        return f"architecture {self.architecture.name!r}"

    def _outputs(
        self, g: Builder, weights: Tensors, built: Any, pooling: str, top_k: bool
    ) -> dict[str, Node]:
        """What the graph gives: logits, or embeddings of an encoder and where pooling is asked for."""
        of = self.architecture.output
        if not isinstance(built, Node):
            raise ArchitectureError(f"{self.built_by}: build gave {built!r}; wanted the node of the {of}")
        if of == "logits" and not (self.is_head and DRAFTED_IDS in self.file.tensors):
            check_logits(built, self.file.tensors)
        if of == "logits" and pooling in ("", LOGITS):
            own = {HIDDEN: g.hidden} if self.is_head and g.hidden is not None else {}
            return {of: built} | (candidates(g, built) if top_k and not pooling else {}) | own
        hidden = built if of == "embeddings" else g.hidden
        if hidden is None:
            raise ArchitectureError(
                f"{self.built_by}: wanted logits made by weights.logits(x), to embed by x"
            )
        hidden = output_rows(g, hidden)
        eps = self._keys.number("attention.layer_norm_epsilon", 1e-5)
        kind = pooling or self.pooling
        return {"embeddings": pooled(g, self._keys, weights, hidden, kind, self._rank, eps)}

    @property
    def _keys(self) -> Keys:
        return Keys(self.file.metadata, self.file.metadata.text("general.architecture"))

    @cached_property
    def pooling(self) -> str:
        """The file's kind of pooling (`graphml.loading.pooling.POOLINGS`); "none" where it says nothing."""
        return read_pooling(self._keys) or "none"

    @cached_property
    def _rank(self) -> Rank:
        """How pairs are scored, with the pooling that the file says, if any."""
        rank, first = self.architecture.rank, "last" if self.architecture.causal else "cls"
        return replace(
            rank, pooling=read_pooling(self._keys, "classifier.pooling_type") or rank.pooling or first
        )

    def rows(self, all_logits: bool, pooling: str) -> Rows:
        """Which rows a step returns that is asked for all logits, or pools so ("": it does not)."""
        if self.architecture.output == "embeddings":
            pooling = pooling or self.pooling
        if all_logits or not pooling:
            return "all" if all_logits else "last"
        return ROWS[self._rank.pooling if pooling == "rank" else pooling]
