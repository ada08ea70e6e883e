"""OpenELM (Mehta et al. 2024, arXiv:2404.14619): llama with normed heads, more in deeper layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama, qwen3
from graphml_models._config import Heads, with_heads
from graphml_models._samples import HEAD_NORMS, Metadata, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; heads: of each layer."""

    heads: tuple[Heads, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads = _config.read_heads(keys)
        known = _config.read(keys, heads=heads[-1])
        return cls(**vars(known), heads=heads)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """As in qwen3, with the layer's own numbers of heads."""
    return qwen3.attention(g, with_heads(config, config.heads[layer.index]), layer, table, x_TD)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; the scale of queries, keys and values is left out, as in llama.cpp."""
    kept = weights.without("*.attn_qkv.scale")
    return llama.build(g, config, kept, attention, partial(llama.feed_forward, scaled=False))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: its first layer has half the heads and half the hidden width."""
    keys: Metadata = {
        "attention.head_count": [2, 4],
        "attention.head_count_kv": [1, 2],
        "attention.key_length": 16,
    }
    keys["feed_forward_length"] = [48, 96]
    first = {"attn_qkv.weight": (64, 64), "attn_output.weight": (64, 32), "ffn_gate.weight": (48, 64),
             "ffn_up.weight": (48, 64), "ffn_down.weight": (64, 48)}  # fmt: skip
    layer = {**HEAD_NORMS, "attn_qkv.weight": (128, 64)}
    split = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
    top = {f"blk.0.{part}": shape for part, shape in first.items()}
    return [transformer(name, tied=True, layer=layer, top=top, without=split, metadata=keys)]
