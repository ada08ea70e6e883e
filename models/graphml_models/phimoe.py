"""Phi-3.5-MoE (Abdin et al. 2024, arXiv:2404.14219): experts, LongRoPE, and biases everywhere.

Norms have a bias but subtract no mean, as in llama.cpp. T tokens, D model
width.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config
from graphml_models._experts import swiglu_experts
from graphml_models._samples import transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""

    def norm(tensors: Tensors, x: Node, name: str) -> Node:
        return g.add(g.rms_norm(x, tensors[name], config.norm_eps), tensors[f"{name}.bias"], name)

    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = llama.attention(g, config, layer, table, norm(layer, x_TD, "attn_norm"), mode="neox")
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = swiglu_experts(g, layer, norm(layer, x_TD, "ffn_norm"), config.n_expert_used)
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    norms = {f"{part}.bias": (64,) for part in ("attn_norm", "ffn_norm")}
    top = {"output_norm.bias": (64,), "output.bias": (80,), "rope_factors_short.weight": (8,),
           "rope_factors_long.weight": (8,)}  # fmt: skip
    biases = ("attn_q", "attn_k", "attn_v", "attn_output")
    return [transformer(name, n_expert=5, biases=biases, layer=norms, top=top)]
