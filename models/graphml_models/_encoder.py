"""The family of BERT: tokens see all of a text, and a layer norm follows each block and its residual.

T tokens, O output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Tensors
from graphml.loading.pooling import KINDS_BY_ID
from graphml_models import _layer_norm
from graphml_models._layer_norm import Part, norm


@dataclass(frozen=True)
class Config(_layer_norm.Config):
    """As of the family of GPT-2; kinds_by_id: see `graphml.loading.pooling.KINDS_BY_ID`."""

    kinds_by_id: bool = field(default=False, kw_only=True)

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(**vars(_layer_norm.Config.read(keys)), kinds_by_id=keys.boolean(KINDS_BY_ID, False))


def embedded(weights: Tensors, config: Config, positions_TD: Node | None = None) -> Node:
    """Tokens with their kinds, with learned positions if there are any, normed: [T, D].

    The kind is that of the first sentence, unless ids say the second.
    """
    g = weights.g
    ids, kind_T1 = g.tokens, g.column_numbers(g.positions, 1)
    if config.kinds_by_id:
        n_vocab, number_T = fixed(weights["token_embd"].shape[0]), g.cast(g.tokens, "f32")
        second_T = g.less(g.scale(number_T, -1.0), g.constant(0.5 - n_vocab))
        ids = g.cast(g.sub(number_T, g.scale(second_T, n_vocab)), "i32")
        kind_T1 = g.reshape(g.cast(second_T, "i32"), 1)
    x_TD = g.embed(weights["token_embd"], ids)
    kinds = weights.get("token_types")
    if kinds is not None:
        x_TD = g.add(x_TD, g.flatten(g.rows(kinds, kind_T1)), "typed")
    if positions_TD is not None:
        x_TD = g.add(x_TD, positions_TD, "placed")
    return norm(weights, x_TD, "token_embd_norm", config.norm_eps)


def encoder(weights: Tensors, config: Config, x_TD: Node, attention: Part, ffn: Part) -> Node:
    """Hidden rows [O, D]: attention, then feed-forward, each added to the residual and normed after that."""
    g, eps = weights.g, config.norm_eps
    for layer in weights.layers(config.n_layer):
        h_TD = attention(layer, x_TD)
        h_TD = g.add(layer.linear(h_TD, "attn_output", "attn_out"), x_TD, "attn_residual")
        h_TD = norm(layer, h_TD, "attn_output_norm", eps)
        if layer.get("attn_norm_2"):
            h_TD = norm(layer, g.add(h_TD, x_TD, "attn_residual_2"), "attn_norm_2", eps)
        x_TD = norm(layer, g.add(ffn(layer, h_TD), h_TD, "ffn_residual"), "layer_output_norm", eps)
    return x_TD
