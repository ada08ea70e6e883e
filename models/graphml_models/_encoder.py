"""The family of BERT: tokens see all of a text, and a layer norm follows each block and its residual.

T tokens, O output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.loading.architecture import Tensors
from graphml_models._layer_norm import Config, Part, norm


def embedded(weights: Tensors, config: Config, positions_TD: Node | None = None) -> Node:
    """Tokens as the first kind of sentence, with learned positions if there are any, normed: [T, D]."""
    g = weights.g
    x_TD = g.embed(weights["token_embd"], g.tokens)
    kinds = weights.get("token_types")
    if kinds is not None:
        x_TD = g.add(x_TD, g.flatten(g.rows(kinds, g.column_numbers(g.positions, 1))), "typed")
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
