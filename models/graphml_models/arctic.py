"""Arctic (Snowflake 2024, "Snowflake Arctic"): llama with experts beside each whole layer.

T tokens, D model width.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config
from graphml_models._experts import swiglu_experts
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""

    def norm(tensors: Tensors, x: Node, name: str) -> Node:
        return g.rms_norm(x, tensors[name], config.norm_eps, name)

    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        a_TD = llama.attention(g, config, layer, table, norm(layer, x_TD, "attn_norm"))
        y_TD = g.add(x_TD, layer.linear(a_TD, "attn_output", "attn_out"), "attn_residual")
        y_TD = g.add(y_TD, gated_ffn(g, layer, norm(layer, y_TD, "ffn_norm")), "ffn_residual")
        e_TD = swiglu_experts(g, layer, norm(layer, x_TD, "ffn_norm_exps"), config.n_expert_used)
        x_TD = g.add(y_TD, e_TD, "experts_residual")
    return weights.logits(norm(weights, x_TD, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    dense = {"ffn_gate.weight": (64, 64), "ffn_up.weight": (64, 64), "ffn_down.weight": (64, 64)}
    return [transformer(name, n_expert=5, layer={**dense, "ffn_norm_exps.weight": (64,)})]
