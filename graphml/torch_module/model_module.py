"""A model as a module of PyTorch: ids to logits or embeddings, each text from its begin on.

Knows the graph that an open model's architecture builds, adapters in it, and a step's inputs; nothing of
engines or samplers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphml.api.model import Model
from graphml.errors import UsageError
from graphml.ir.cell_groups import share_cells
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.long_texts import long_values
from graphml.ir.op import Array
from graphml.ir.ops.leaf import state_leaf
from graphml.ir.shape import resolve
from graphml.passes.lora import FACTORS, Adapter, adapted
from graphml.runtime.programs.model_graphs import ModelGraphs
from graphml.runtime.programs.step_inputs import graph_arrays
from graphml.torch_module.graph_module import GraphModule

MOST_TOKENS = 1 << 16
"""Of all texts of one call."""


class ModelModule(GraphModule):
    """`module(ids)` gives the logits behind each id, or of a model of embeddings the row of each.

    ids: whole numbers [T], or [B, T] for B texts of one length -> float [T, n] or [B, T, n].
    adapters, factors: None for those that the model was opened with; their matrices are parameters, too.
    Nothing is kept between calls; keys and values are not rounded. UsageError for a model with a source text,
    and for one that was opened with control vectors.
    """

    def __init__(
        self, model: Model, adapters: Sequence[Adapter] | None = None, factors: Sequence[float] = ()
    ) -> None:
        executor = model.executor
        if executor.encodes:
            raise UsageError(f"{model.path}: to_torch: wanted a model without a source text")
        if executor.options.control is not None:
            raise UsageError(f"{model.path}: to_torch: wanted a model without control vectors")
        if adapters is None:
            adapters, factors = executor.options.adapters, executor.options.factors
        graphs = ModelGraphs(executor.file, executor.graphs.architecture, executor.config, "f32", True)
        graph = adapted(graphs.build(MOST_TOKENS, MOST_TOKENS, MOST_TOKENS), adapters)
        arrays = graph_arrays(executor.file)
        for adapter in adapters:
            arrays |= adapter.arrays()
        super().__init__(graph, arrays)
        (self._output,) = graph.outputs
        self.n_ctx, self._long, self._by_token = executor.config.n_ctx, graphs.long_inputs, graphs.by_token
        self._n_vocab, self._factors = executor.n_vocab, np.array(factors, np.float32)

    def forward(self, ids: Any) -> Tensor:  # type: ignore[override]
        """See the class. UsageError for ids that are none, or too many."""
        tokens = torch.as_tensor(ids)
        if tokens.ndim not in (1, 2) or not tokens.numel() or tokens.is_floating_point():
            raise UsageError(f"ids: wanted whole numbers [T] or [B, T]; got {list(tokens.shape)}")
        rows = self.rows(list(tokens.reshape(-1, tokens.shape[-1]).cpu().numpy()))
        return rows if tokens.ndim == 1 else rows.reshape(*tokens.shape, -1)

    def rows(self, texts: Sequence[Array], chosen: Array | None = None) -> Tensor:
        """The rows behind the ids of texts of any lengths, one text behind the other: float [rows, n].

        chosen: the numbers of the wanted rows; None for all. UsageError as of the call.
        """
        lengths, ids = np.array([len(text) for text in texts], np.int32), np.concatenate(texts)
        if lengths.max() > self.n_ctx or ids.size > MOST_TOKENS:
            raise UsageError(f"ids: wanted texts of at most {self.n_ctx} tokens, {MOST_TOKENS} in all")
        if not 0 <= ids.min() <= ids.max() < self._n_vocab:
            raise UsageError(f"ids: wanted 0 to {self._n_vocab - 1}; got {ids.min()} to {ids.max()}")
        whole = _Texts(ids.astype(np.int32), lengths)
        wanted = np.arange(len(ids), dtype=np.int32) if chosen is None else chosen.astype(np.int32)
        states = self._states(whole)
        if not self._by_token:
            return self._step(states, whole.inputs(slice(None), wanted, lengths))
        steps = [np.flatnonzero(whole.positions == at) for at in range(lengths.max())]
        parts = []
        for at, own in enumerate(steps):
            rows = np.arange(len(own), dtype=np.int32)
            parts.append(self._step(states, whole.inputs(own, rows, np.minimum(lengths, at + 1))))
        return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(steps))[wanted])]

    def _states(self, texts: _Texts) -> dict[str, Tensor]:
        dims = {"S": len(texts.lengths), "C": texts.n_blocks * len(texts.lengths) * BLOCK_SIZE}
        return {
            node.name: torch.zeros(resolve(node.shape, dims), dtype=self.dtype, device=self.device)
            for node in self.graph.nodes
            if node.op is state_leaf
        }

    def _step(self, states: dict[str, Tensor], arrays: dict[str, Array]) -> Tensor:
        wanted, n_rows = self.graph.leaves("input").keys(), len(arrays["tokens"])
        share_cells(wanted, arrays, {"C": 0})
        arrays |= long_values(self._long, arrays["of_text"], self.n_ctx)
        arrays[FACTORS] = np.tile(self._factors, (n_rows, 1))
        inputs = {name: array for name, array in arrays.items() if name in wanted}
        return super().forward(states, **inputs)[self._output]


class _Texts:
    """Texts of any lengths, one behind the other; ids int32 [T], lengths int32 [texts]."""

    def __init__(self, ids: Array, lengths: Array) -> None:
        self.ids, self.lengths = ids, lengths
        self.positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        self.sequences = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        self.n_blocks = int(-(-lengths.max() // BLOCK_SIZE))

    def inputs(self, own: Any, output_rows: Array, lengths: Array) -> dict[str, Array]:
        """Of a step with the ids of these numbers; lengths: how far each text is evaluated after it."""
        sequences, positions, n_texts = self.sequences[own], self.positions[own], len(self.lengths)
        return {
            "tokens": self.ids[own],
            "positions": positions,
            "sequences": sequences,
            "cells": sequences * np.int32(self.n_blocks * BLOCK_SIZE) + positions,
            "block_table": np.arange(n_texts * self.n_blocks, dtype=np.int32).reshape(n_texts, self.n_blocks),
            "output_rows": output_rows,
            "lengths": lengths,
            "of_text": self.lengths[sequences],
        }
