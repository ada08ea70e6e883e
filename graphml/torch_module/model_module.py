"""A model as a module of PyTorch: ids to logits or embeddings, each text from its begin on.

Knows the graph that an open model's architecture builds, and a step's inputs; nothing of engines or samplers.
"""

from __future__ import annotations

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
from graphml.runtime.programs.model_graphs import ModelGraphs
from graphml.runtime.programs.step_inputs import graph_arrays
from graphml.torch_module.graph_module import GraphModule

MOST_TOKENS = 1 << 16
"""Of all texts of one call."""


class ModelModule(GraphModule):
    """`module(ids)` gives the logits behind each id, or of a model of embeddings the row of each.

    ids: whole numbers [T], or [B, T] for B texts of one length -> float [T, n] or [B, T, n].
    Nothing is kept between calls; keys and values are not rounded. UsageError for a model with a source text,
    and for one that was opened with adapters or control vectors.
    """

    def __init__(self, model: Model) -> None:
        executor = model.executor
        if executor.encodes:
            raise UsageError(f"{model.path}: to_torch: wanted a model without a source text")
        if executor.options.adapters or executor.options.control is not None:
            raise UsageError(f"{model.path}: to_torch: wanted a model without adapters and control vectors")
        graphs = ModelGraphs(executor.file, executor.graphs.architecture, executor.config, "f32", True)
        graph = graphs.build(MOST_TOKENS, MOST_TOKENS, MOST_TOKENS)
        super().__init__(graph, graph_arrays(executor.file))
        (self._output,) = graph.outputs
        self.n_ctx, self._long, self._by_token = executor.config.n_ctx, graphs.long_inputs, graphs.by_token
        self._n_vocab = executor.n_vocab

    def forward(self, ids: Any) -> Tensor:  # type: ignore[override]
        """See the class. UsageError for ids that are none, or too many."""
        tokens = torch.as_tensor(ids)
        if tokens.ndim not in (1, 2) or not tokens.numel() or tokens.is_floating_point():
            raise UsageError(f"ids: wanted whole numbers [T] or [B, T]; got {list(tokens.shape)}")
        texts = tokens.reshape(-1, tokens.shape[-1]).cpu().numpy().astype(np.int32)
        n_texts, length = texts.shape
        if length > self.n_ctx or texts.size > MOST_TOKENS:
            raise UsageError(f"ids: wanted texts of at most {self.n_ctx} tokens, {MOST_TOKENS} in all")
        if not 0 <= texts.min() <= texts.max() < self._n_vocab:
            raise UsageError(f"ids: wanted 0 to {self._n_vocab - 1}; got {texts.min()} to {texts.max()}")
        states = self._states(n_texts, length)
        spans = [(t, t + 1) for t in range(length)] if self._by_token else [(0, length)]
        parts = [super(ModelModule, self).forward(states, **self._inputs(texts, *span)) for span in spans]
        rows = [part[self._output].reshape(n_texts, -1, part[self._output].shape[-1]) for part in parts]
        whole = torch.cat(rows, 1)
        return whole[0] if tokens.ndim == 1 else whole

    def _states(self, n_texts: int, length: int) -> dict[str, Tensor]:
        n_cells = n_texts * -(-length // BLOCK_SIZE) * BLOCK_SIZE
        dims = {"S": n_texts, "C": n_cells}
        return {
            node.name: torch.zeros(resolve(node.shape, dims), dtype=self.dtype, device=self.device)
            for node in self.graph.nodes
            if node.op is state_leaf
        }

    def _inputs(self, texts: Array, start: int, end: int) -> dict[str, Array]:
        """The inputs of a step with the ids from `start` to `end` of each text."""
        n_texts, length = texts.shape
        n_blocks = -(-length // BLOCK_SIZE)
        positions = np.tile(np.arange(start, end, dtype=np.int32), n_texts)
        sequences = np.repeat(np.arange(n_texts, dtype=np.int32), end - start)
        arrays: dict[str, Array] = {
            "tokens": texts[:, start:end].reshape(-1),
            "positions": positions,
            "sequences": sequences,
            "cells": sequences * np.int32(n_blocks * BLOCK_SIZE) + positions,
            "block_table": np.arange(n_texts * n_blocks, dtype=np.int32).reshape(n_texts, n_blocks),
            "output_rows": np.arange(len(positions), dtype=np.int32),
            "lengths": np.full(n_texts, end, np.int32),
        }
        wanted = self.graph.leaves("input").keys()
        share_cells(wanted, arrays, {"C": 0})
        arrays |= long_values(self._long, np.full(len(positions), length, np.int32), self.n_ctx)
        return {name: array for name, array in arrays.items() if name in wanted}
