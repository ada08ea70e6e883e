"""BitNet b1.58 (Ma et al. 2024, arXiv:2402.17764): llama with a norm before each block's last matrix."""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import N_EMBD, N_FF, transformer


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention normed before its output projection, [T, N * H]."""
    y_TD = llama.attention(g, config, layer, table, x_TD, mode="neox")
    return g.rms_norm(y_TD, layer["attn_sub_norm"], config.norm_eps, "attn_sub_norm")


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU normed before its output projection, [T, D]."""
    gate_TF, up_TF = layer.linear(x_TD, "ffn_gate", "gate"), layer.linear(x_TD, "ffn_up", "up")
    h_TF = g.mul(g.silu(gate_TF), up_TF, "swiglu")
    return layer.linear(
        g.rms_norm(h_TF, layer["ffn_sub_norm"], config.norm_eps, "ffn_sub_norm"), "ffn_down", "down"
    )


build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [
        transformer(
            name, tied=True, layer={"attn_sub_norm.weight": (N_EMBD,), "ffn_sub_norm.weight": (N_FF,)}
        )
    ]
