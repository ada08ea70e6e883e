"""Cohere 2 with experts (Cohere 2026): cohere2's windows, experts beside attention, shared and chosen alike.

T tokens, O output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _routing, llama
from graphml_models._attention import rotated_heads
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import dense_layers, shared_expert, transformer
from graphml_models._windows import PATTERN, WindowConfig, read_windows


@dataclass(frozen=True)
class Config(_routing.Config, WindowConfig):
    """And windows, how many first ones have positions, the factor of logits.

    rms: norms are by the root mean square, else layer norms.
    """

    n_dense: int
    logit_scale: float
    rms: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata; 0 stands for none of that."""
        rms = keys.number(_config.RMS_EPS, 0.0) != 0.0
        known = _config.read(keys, eps=_config.RMS_EPS if rms else _config.LAYER_EPS)
        return cls(
            **vars(known),
            routing=replace(Routing.read(keys, SIGMOID), scaled=True),
            windows=read_windows(keys, known.n_layer, period=4, all_first=True),
            n_dense=keys.integer("leading_dense_block_count"),
            logit_scale=keys.number("logit_scale") or 1.0,
            rms=rms,
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        x_TD = llama.block(g, config, layer, table, x_TD, attention, feed_forward, norms="shared", norm=norm)
    x_TD = norm(g, config, weights, x_TD, "output_norm", "output_norm")
    return g.scale(weights.logits(x_TD, "unscaled"), config.logit_scale, name="logits")


def norm(g: Builder, config: Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """Either kind of norm, without a bias."""
    if config.rms:
        return g.rms_norm(x, tensors[tensor], config.norm_eps, name)
    return g.layer_norm(x, tensors[tensor], None, config.norm_eps, name)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    window = config.windows[layer.index]
    rope = table if window or layer.index < config.n_dense else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "norm")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, or the mean of what all tokens share and what was chosen, [T, D]."""
    y_TD = shared_and_chosen(g, config, layer, x_TD)
    return g.scale(y_TD, 0.5, name="mean") if layer.get("ffn_up_shexp") else y_TD


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: windows shorter than the texts they read; layer norms, and all experts apart."""
    keys = {"logit_scale": 0.25, "leading_dense_block_count": 1, "attention.sliding_window": 20}
    split = dense_layers(0, without=("ffn_norm.weight",))
    gone = ("blk.0.ffn_gate_up_exps.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight")
    fused = dense_layers(0, without=("ffn_norm.weight", *gone))
    layer = {**shared_expert(), "ffn_gate_up_exps.weight": (5, 192, 64)}
    return [
        transformer(name, n_expert=5, n_layer=4, layer=layer, metadata=keys, **fused),
        transformer(name, "plain", n_expert=5, layer_norm=True, metadata={**keys, PATTERN: 2}, **split),
    ]
