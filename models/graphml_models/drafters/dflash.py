"""DFlash, DSpark, DFlash 2 (2026): layers that draft a block of ids at once, by hidden rows of another model.

The rows that some layers of it are given for a token are joined and projected to D; each layer keeps keys and
values of that alone. A block is the last id and mask tokens behind it, which see all of that and each other,
as in llama.cpp. Files of DSpark and of DFlash 2 say besides what an id makes likely behind it; those of the
latter mix the rows of a block by convolutions, too. T tokens, O output rows, D width, W width of the model
that is drafted for, R that of rows of such ids, N heads, K key-value heads, H head width, G groups of D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.errors import ArchitectureError
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
OWN_MASK = "mask_token_id"  # of folders, which have no tokenizer
MOST_TARGET_LAYERS = 64


@dataclass(frozen=True)
class Config(_windows.WindowConfig):
    """target_layers: layers of the other model whose inputs are read; block_size: rows of a block.

    mask: the id of masks. sample_from_anchor: DSpark's first row of a block drafts, too. causal: no row of a
    block sees those behind it. embedding_scale, value_scale: of embeddings and of what attention gives; 0 for
    none. activation: of the feed-forwards, a name. Of DFlash 2: n_taps and n_group, rows of a convolution and
    columns that share factors; n_candidates: of each row, the most likely ids that it may draft; logit_scale,
    softcap: of its logits, 0 for none.
    """

    target_layers: tuple[int, ...]
    block_size: int
    mask: int
    sample_from_anchor: bool
    causal: bool
    embedding_scale: float
    value_scale: float
    activation: str
    n_taps: int
    n_group: int
    n_candidates: int
    logit_scale: float
    softcap: float

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
            mask=keys.integer(OWN_MASK) if keys.has(OWN_MASK) else keys.metadata.integer(MASK),
            sample_from_anchor=keys.boolean("sample_from_anchor", True),
            causal=causal,
            embedding_scale=keys.number("embedding_scale", 0.0),
            value_scale=keys.number("attention.value_scale", 0.0),
            activation=activation,
            n_taps=keys.integer("conv_kernel_size", 0),
            n_group=keys.integer("conv_group_size", 0),
            n_candidates=keys.integer("selector_top_k", 0),
            logit_scale=keys.number("logit_scale", 0.0),
            softcap=keys.number("final_logit_softcapping", 0.0),
        )


def ahead(g: Builder, config: Config, weights: Tensors, hidden: Node) -> Node:
    """Logits [O, ids that it drafts] of each row of a block, also of its first, which drafts nothing.

    hidden: [T, layers * W + 2]: the rows of the other model and 0 for a token that is read; for a row of a
    block zeros and 1; then its number in the step. What a read token computes besides keys and values means
    nothing.
    """
    eps, width = config.norm_eps, fixed(hidden.shape[-1]) - 2
    selects = weights.get(SELECTS) is not None
    if selects and (
        min(config.n_taps, config.n_group, config.n_candidates) < 1 or config.n_embd % config.n_group
    ):
        raise ArchitectureError(
            f"tensor {SELECTS}: wanted keys conv_kernel_size and selector_top_k of at least 1, and a "
            f"conv_group_size that divides {config.n_embd}; got {config.n_taps}, {config.n_candidates} and "
            f"{config.n_group}"
        )
    is_block_T1 = g.columns(hidden, width, width + 1)
    read_TD = weights.linear(g.columns(hidden, 0, width), "fc", rows=config.n_embd)
    read_TD = g.rms_norm(read_TD, weights["enc.output_norm"], eps, "features")
    x_TD = g.embed(weights["token_embd"], g.tokens)
    x_TD = g.scale(x_TD, config.embedding_scale) if config.embedding_scale else x_TD
    table = config.rope.table(g, weights)

    def normed(layer: Layer, x: Node, name: str) -> Node:
        return g.rms_norm(x, layer[name], eps, name) if layer.get(name) else x

    number_T1 = g.columns(hidden, width + 1, width + 2)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], eps, "attn_norm")
        mix = Mix(g, config, layer, "attn", h_TD, is_block_T1, number_T1) if selects else None
        h_TD = h_TD if mix is None else mix(h_TD, 0)
        kept_TD = g.add(g.mul(h_TD, is_block_T1), read_TD, "kept")  # the one or the other
        h_TD = layer.linear(attention(g, config, layer, table, h_TD, kept_TD), "attn_output", "attn_out")
        h_TD = g.scale(h_TD, config.value_scale) if config.value_scale else h_TD
        h_TD = h_TD if mix is None else mix(h_TD, 1)
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_attention_norm"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], eps, "ffn_norm")
        mix = Mix(g, config, layer, "ffn", h_TD, is_block_T1, number_T1) if selects else None
        h_TD = h_TD if mix is None else mix(h_TD, 0)
        h_TD = gated_ffn(g, layer, h_TD, ACTIVATIONS[config.activation], scaled=True)
        h_TD = h_TD if mix is None else mix(h_TD, 1)
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_ffw_norm"), "ffn_residual")
        factor = layer.get("layer_output_scale")
        x_TD = x_TD if factor is None else g.mul(x_TD, factor, "output_scaled")
    logits = weights.logits(g.rms_norm(x_TD, weights["output_norm"], eps, "output_norm"))
    if not selects:
        return logits
    logits = g.scale(logits, config.logit_scale) if config.logit_scale else logits
    return g.softcap(logits, config.softcap) if config.softcap > 0 else logits


class Mix:
    """DFlash 2's convolution of the rows of a block, before (side 0) and behind (1) a part of a layer.

    Each row is a sum of itself and rows before it, whose factors are a vector of the file's for each, and for
    groups of columns what the row `x` [T, D] says.
    """

    def __init__(
        self, g: Builder, config: Config, layer: Layer, part: str, x: Node, is_block_T1: Node, number_T1: Node
    ) -> None:
        self._g, self._config, self._is_block_T1, self._number_T1 = g, config, is_block_T1, number_T1
        n_groups, width = config.n_embd // config.n_group, 2 * config.n_taps * config.n_embd
        self._own = layer.linear(x, f"{part}_conv_proj", rows=2 * config.n_taps * n_groups)
        base = layer[f"{part}_conv_base"]
        if base.shape != (2, config.n_taps, config.n_embd):
            raise ArchitectureError(
                f"tensor {base.name}: wanted {(2, config.n_taps, config.n_embd)}; got {base.type}"
            )
        self._base, self._n_groups = g.reshape(base, 1, width, keep=0), n_groups

    def __call__(self, x: Node, side: int) -> Node:
        """The sums [T, D]."""
        g, config, n_groups = self._g, self._config, self._n_groups
        y, of_block_TD = None, g.mul(x, self._is_block_T1)
        for tap in range(config.n_taps):
            at = side * config.n_taps + tap
            source_T = g.reshape(g.cast(g.scale(self._number_T1, 1.0, -float(tap)), "i32"), keep=1)
            before_TD = g.rows(of_block_TD, source_T) if tap else of_block_TD
            own_TG1 = g.reshape(g.columns(self._own, at * n_groups, (at + 1) * n_groups), n_groups, 1)
            base_D = g.reshape(
                g.columns(self._base, at * config.n_embd, (at + 1) * config.n_embd), config.n_embd, keep=0
            )
            term = g.add(g.flatten(g.mul(g.heads(before_TD, n_groups), own_TG1)), g.mul(before_TD, base_D))
            y = term if y is None else g.add(y, term)
        assert y is not None
        return y


SELECTS = "selector_hidden"
CORRECTS = ("markov_w1.weight", f"{SELECTS}.weight")
"""Tensors that files of DSpark and of DFlash 2 have, and others do not."""


def correct(g: Builder, config: Config, weights: Tensors, hidden: Node) -> Node:
    """What is added to the logits of a row of a block [O, ids that it drafts], by the id before, `g.tokens`.

    hidden: [T, D], the row behind the output norm. Its own hidden row: the confidence that the id is right,
    [O, 1], where the file measures it. DFlash 2's sums are of all ids of the model.
    """
    if weights.get(SELECTS):
        gate_TR = weights.linear(hidden, SELECTS, "gate")
        before_TR = g.mul(g.embed(weights["selector_predecessor"], g.tokens), gate_TR)
        return weights.linear(before_TR, "selector_successor", "correction")
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
