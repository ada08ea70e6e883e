"""EAGLE-3 (Li et al. 2025, arXiv:2503.01840): one layer that drafts from hidden rows of another model.

The rows that three layers of it are given for a token are joined and projected to the drafter's width D; to
draft further, the layer's own row, before its norm, takes the projection's place, as in llama.cpp.
T tokens, O output rows, W width of the model that is drafted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Tensors
from graphml.loading.named_tensors import output_rows
from graphml_models import _config
from graphml_models._attention import attention
from graphml_models._ffn import gated_ffn

FORM = "rows"
USUAL_LAYERS = "usual_layers"
"""Of folders, whose config may leave it to the model that is drafted for."""
N_ROWS = 3


@dataclass(frozen=True)
class Config(_config.Config):
    """target_layers: layers of the other model whose inputs are read; n_embd_target: its width W.

    norm_before_residual: the residual is that of the normed row; norm_before_fc: the joined rows are normed.
    usual_layers: the model that is drafted for decides which layers are read.
    """

    target_layers: tuple[int, ...]
    n_embd_target: int
    norm_before_residual: bool
    norm_before_fc: bool
    usual_layers: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        if known.n_layer != 1:
            raise keys.unsupported("block_count", "1 layer")
        if keys.integer("attention.value_length", known.head_dim) != known.head_dim:
            raise keys.unsupported("attention.value_length", f"{known.head_dim}, as that of keys")
        usual = keys.boolean(USUAL_LAYERS, False)
        if not usual and keys.length("target_layers") != N_ROWS:
            raise keys.unsupported("target_layers", f"the numbers of {N_ROWS} layers")
        n_embd_target = keys.integer("target_hidden_size")
        if n_embd_target < 1:
            raise keys.unsupported("target_hidden_size", "at least 1")
        return cls(
            **vars(known),
            target_layers=() if usual else keys.integers("target_layers", N_ROWS),
            n_embd_target=n_embd_target,
            norm_before_residual=keys.boolean("norm_before_residual", False),
            norm_before_fc=keys.boolean("norm_before_fc", False),
            usual_layers=usual,
        )


def ahead(g: Builder, config: Config, weights: Tensors, hidden: Node) -> Node:
    """Logits [O, ids that it drafts] of what follows `g.tokens`.

    hidden: [T, 3 * W + D], of the tokens before those: the rows of the other model, or in the last columns
    the layer's own row of the step before; the others are 0, which adds nothing.
    """
    width, eps = N_ROWS * config.n_embd_target, config.norm_eps
    joined = g.columns(hidden, 0, width)
    if config.norm_before_fc:
        joined = g.rms_norm(joined, weights["enc.output_norm"], eps, "joined_norm")
    own_TD = g.columns(hidden, width, width + config.n_embd)
    x_TD = g.add(weights.linear(joined, "fc", rows=config.n_embd), own_TD, "features")
    table = config.rope.table(g, weights)
    for layer in weights.layers(1):
        e_TD = g.rms_norm(g.embed(weights["token_embd"], g.tokens), layer["attn_norm"], eps, "attn_norm")
        n_TD = g.rms_norm(x_TD, layer["attn_norm_2"], eps, "features_norm")
        both = g.concat(e_TD, n_TD)
        h_TD = layer.linear(attention(g, config, layer, table, both), "attn_output", "attn_out")
        x_TD = g.add(n_TD if config.norm_before_residual else x_TD, h_TD, "attn_residual")
        h_TD = gated_ffn(g, layer, g.rms_norm(x_TD, layer["ffn_norm"], eps, "ffn_norm"))
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    logits = weights.logits(g.rms_norm(x_TD, weights["output_norm"], eps, "output_norm"))
    g.hidden = output_rows(g, x_TD)  # what it goes on from is not normed
    return logits
