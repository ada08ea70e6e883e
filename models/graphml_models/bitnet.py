"""BitNet b1.58 (Ma et al. 2024, arXiv:2402.17764): llama with a norm before each block's last matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama
from graphml_models._ffn import relu_squared
from graphml_models._samples import N_EMBD, N_FF, transformer

ACTIVATIONS = {"silu": Builder.silu, "relu_squared": relu_squared}


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; activation: of the gates, a key of `ACTIVATIONS`."""

    activation: str

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the metadata; of a GGUF file, which does not say it, gates go through SiLU as in llama.cpp."""
        activation = keys.text("hidden_activation", "silu")
        if activation not in ACTIVATIONS:
            raise keys.unsupported("hidden_activation", " or ".join(ACTIVATIONS))
        return cls(**vars(_config.read(keys)), activation=activation)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention normed before its output projection, [T, N * H]."""
    y_TD = llama.attention(g, config, layer, table, x_TD, mode="neox")
    return g.rms_norm(y_TD, layer["attn_sub_norm"], config.norm_eps, "attn_sub_norm")


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Gated, and normed before its output projection, [T, D]."""
    gate_TF, up_TF = layer.linear(x_TD, "ffn_gate", "gate"), layer.linear(x_TD, "ffn_up", "up")
    h_TF = g.mul(ACTIVATIONS[config.activation](g, gate_TF), up_TF, "gated")
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
