"""Qwen3.5 (Qwen Team 2026, "Qwen3.5"), its language model on text alone: qwen3next with plain feed-forwards.

T tokens, D model width, N heads of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _ahead, _delta_net, llama
from graphml_models._delta_net import GATED_HEADS, KEYS, TENSORS, attention, delta_net
from graphml_models._hybrid import RECURRENT, hybrid
from graphml_models._rope import read_sections
from graphml_models._samples import SECTIONS, Metadata


@dataclass(frozen=True)
class Config(_delta_net.Config):
    """As of every hybrid with delta nets; the sections of the rope are looked at."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        read_sections(keys)
        return super().read(keys)


def mixer(g: Builder, config: _delta_net.Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention or a delta net, before the output projection."""
    if config.attends[layer.index]:
        return attention(g, config, layer, table, x_TD)
    return delta_net(g, config, layer, inputs(layer, x_TD))


def inputs(layer: Layer, x_TD: Node) -> tuple[Node, Node, Node, Node]:
    """What a delta net is made of, each from its own matrix: channels, gate, beta and alpha."""
    names = {"attn_qkv": "qkv", "attn_gate": "gate", "ssm_beta": "beta", "ssm_alpha": "alpha"}
    channels_TC, gate_TE, beta_TN, alpha_TN = (layer.linear(x_TD, *item) for item in names.items())
    return channels_TC, gate_TE, beta_TN, alpha_TN


build = partial(llama.build, attention=mixer, project=_delta_net.out, ffn_norm="post_attention_norm")
ahead = partial(_ahead.build, attention=attention, ffn_norm="post_attention_norm")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    keys = {**KEYS, **SECTIONS, "full_attention_interval": 2}
    plain = hybrid(name, TENSORS, layer=GATED_HEADS, metadata=keys, without=("ffn_norm.weight",))
    listed: Metadata = {RECURRENT: [1, 0, 0]}
    return [plain, _ahead.sample(name, plain, keys=listed)]
