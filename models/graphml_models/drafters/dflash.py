"""DFlash and DSpark (2026): layers that draft a block of ids at once, from hidden rows of another model.

The rows that some layers of it are given for a token are joined and projected to D; each layer keeps keys and
values of that alone. A block is the last id and mask tokens behind it, which see all of that and each other,
as in llama.cpp. DSpark's files say besides what an id makes likely behind it. T tokens, O output rows, D
width, W width of the model that is drafted for, R that of DSpark's rows, N heads, K key-value heads, H head
width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, Tensors
from graphml_models import _config, _windows
from graphml_models._attention import norm_heads, rotate
from graphml_models._ffn import Activation, gated_ffn
from graphml_models._rope import read_sections

FORM = "block"
ACTIVATIONS: dict[str, Activation] = {
    "silu": Builder.silu, "gelu": Builder.gelu, "gelu_pytorch_tanh": Builder.gelu,
}  # fmt: skip
MASK = "tokenizer.ggml.mask_token_id"
MOST_TARGET_LAYERS = 64


@dataclass(frozen=True)
class Config(_windows.WindowConfig):
    """target_layers: layers of the other model whose inputs are read; block_size: rows of a block.

    mask: the id of masks. sample_from_anchor: DSpark's first row of a block drafts, too. causal: no row of a
    block sees those behind it. embedding_scale, value_scale: of embeddings and of what attention gives; 0 for
    none. activation: of the feed-forwards, a name.
    """

    target_layers: tuple[int, ...]
    block_size: int
    mask: int
    sample_from_anchor: bool
    causal: bool
    embedding_scale: float
    value_scale: float
    activation: str

    @property
    def n_embd_target(self) -> int:
        """Width W of the rows of the other model: as its own."""
        return self.n_embd

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        if keys.integer("hyper_connection.count", 0):
            raise keys.unsupported("hyper_connection.count", "0: blocks of DeepSeek-V4 are not read")
        known, block_size = _config.read(keys), keys.integer("block_size", 16)
        if keys.integer("attention.value_length", known.head_dim) != known.head_dim:
            raise keys.unsupported("attention.value_length", f"{known.head_dim}, as that of keys")
        if block_size < 2:
            raise keys.unsupported("block_size", "at least 2 rows")
        n_layers = keys.length("target_layers") or 0
        if not 1 <= n_layers <= MOST_TARGET_LAYERS:
            raise keys.unsupported("target_layers", f"the numbers of 1 to {MOST_TARGET_LAYERS} layers")
        windows, causal = (0,) * known.n_layer, keys.boolean("attention.causal", False)
        if keys.integer(_windows.SIZE, 0):
            if not keys.is_array(_windows.PATTERN):
                raise keys.unsupported(_windows.PATTERN, "a yes or no for each layer")
            windows = _windows.read_windows(keys, known.n_layer, period=0)
        if not causal and any(0 < window < block_size for window in windows):
            raise keys.unsupported(_windows.SIZE, f"at least {block_size} tokens, those of a block")
        activation = keys.text("hidden_activation", "silu")
        if activation not in ACTIVATIONS:
            raise keys.unsupported("hidden_activation", ", ".join(ACTIVATIONS))
        read_sections(keys)  # which refuses what turns by pictures
        return cls(
            **vars(known),
            windows=windows,
            target_layers=keys.integers("target_layers", n_layers),
            block_size=block_size,
            mask=keys.metadata.integer(MASK),
            sample_from_anchor=keys.boolean("sample_from_anchor", True),
            causal=causal,
            embedding_scale=keys.number("embedding_scale", 0.0),
            value_scale=keys.number("attention.value_scale", 0.0),
            activation=activation,
        )


def ahead(g: Builder, config: Config, weights: Tensors, hidden: Node) -> Node:
    """Logits [O, ids that it drafts] of each row of a block, also of its first, which drafts nothing.

    hidden: [T, layers * W + 1]: the rows of the other model and 0 for a token that is read; for a row of a
    block zeros and 1. What a read token computes besides keys and values means nothing.
    """
    eps, width = config.norm_eps, fixed(hidden.shape[-1]) - 1
    is_block_T1 = g.columns(hidden, width, width + 1)
    read_TD = weights.linear(g.columns(hidden, 0, width), "fc", rows=config.n_embd)
    read_TD = g.rms_norm(read_TD, weights["enc.output_norm"], eps, "features")
    x_TD = g.embed(weights["token_embd"], g.tokens)
    x_TD = g.scale(x_TD, config.embedding_scale) if config.embedding_scale else x_TD
    table = config.rope.table(g, weights)

    def normed(layer: Layer, x: Node, name: str) -> Node:
        return g.rms_norm(x, layer[name], eps, name) if layer.get(name) else x

    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], eps, "attn_norm")
        kept_TD = g.add(g.mul(h_TD, is_block_T1), read_TD, "kept")  # the one or the other
        h_TD = layer.linear(attention(g, config, layer, table, h_TD, kept_TD), "attn_output", "attn_out")
        h_TD = g.scale(h_TD, config.value_scale) if config.value_scale else h_TD
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_attention_norm"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], eps, "ffn_norm")
        h_TD = gated_ffn(g, layer, h_TD, ACTIVATIONS[config.activation], scaled=True)
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_ffw_norm"), "ffn_residual")
        factor = layer.get("layer_output_scale")
        x_TD = x_TD if factor is None else g.mul(x_TD, factor, "output_scaled")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], eps, "output_norm"))


CORRECTS = "markov_w1.weight"
"""The tensor that DSpark's files have, and others do not."""


def correct(g: Builder, config: Config, weights: Tensors, hidden: Node) -> Node:
    """What is added to the logits of a row of a block [O, ids that it drafts], by the id before, `g.tokens`.

    hidden: [T, D], the row behind the output norm. Its own hidden row: the confidence that the id is right,
    [O, 1], where the file measures it.
    """
    before_TR = g.embed(weights["markov_w1"], g.tokens)
    if weights.get("conf_proj"):
        g.hidden = g.sigmoid(weights.linear(g.concat(hidden, before_TR), "conf_proj", rows=1))
    return weights.linear(before_TR, "markov_w2", "correction")


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node, kept_TD: Node) -> Node:
    """Queries of `x_TD` on keys and values of `kept_TD`, normed and rotated, [T, N * H].

    Without a matrix of values these are the keys before their norm, normed without weights. A block of rows
    that see each other sees a window back from each, and all that is ahead.
    """

    def heads(x: Node, name: str, count: int) -> Node:
        return g.heads(layer.linear(x, f"attn_{name}", name, rows=count * config.head_dim), count)

    q_TNH, k_TKH = heads(x_TD, "q", config.n_head), heads(kept_TD, "k", config.n_head_kv)
    has_values = layer.get("attn_v") is not None
    v_TKH = heads(kept_TD, "v", config.n_head_kv) if has_values else g.rms_norm(k_TKH, None, config.norm_eps)
    q_TNH, k_TKH = rotate(g, table, "neox", *norm_heads(g, config, layer, q_TNH, k_TKH))
    window = config.windows[layer.index]
    window = window if config.causal or not window else 2 * (window - 1)
    sinks = layer.get("attn_sinks")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window, sinks=sinks, causal=config.causal)
