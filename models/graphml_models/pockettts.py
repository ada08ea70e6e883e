"""Pocket TTS (Kyutai 2026, "Pocket TTS"), its language model on text: GPT-2's layers with rotated heads.

What makes sound of its outputs is no part of it; its logits are those of its embedding. Letters as in
`_layer_norm`.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models import llama
from graphml_models._layer_norm import Config as Config
from graphml_models._layer_norm import decoder
from graphml_models._samples import layer_norm_transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)

    def attention(layer: Layer, x_TD: Node) -> Node:
        return llama.attention(g, config, layer, table, x_TD)

    return decoder(weights, config, g.embed(weights["token_embd"], g.tokens), attention)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests, its norms alone with biases."""
    norms = ("attn_norm", "ffn_norm")
    return [
        layer_norm_transformer(
            name,
            n_head_kv=2,
            fused=False,
            biases=False,
            tied=True,
            layer={f"{norm}.bias": (64,) for norm in norms},
            top={"output_norm.bias": (64,)},
        )
    ]
