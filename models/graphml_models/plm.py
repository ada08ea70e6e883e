"""PLM (Deng et al. 2025, arXiv:2503.12167): latent attention in a dense model, its feed-forward relu squared.

Letters as in `_latent`.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import arcee, llama
from graphml_models._config import Config as Config
from graphml_models._latent import latent, queries, unfolded
from graphml_models._samples import Metadata, Shapes, transformer


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention before its output projection, [T, N * V]."""
    parts = latent(g, config, layer, queries(g, config, layer, x_TD), x_TD)
    return unfolded(g, config, layer, parts.rotated(g, table))


build = partial(llama.build, attention=attention, feed_forward=arcee.feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    keys: Metadata = {"attention.key_length": 20, "rope.dimension_count": 8}  # R 24, P 8, I 12, V 16
    layer: Shapes = {
        "attn_q.weight": (80, 64), "attn_kv_a_mqa.weight": (32, 64), "attn_kv_a_norm.weight": (24,),
        "attn_kv_b.weight": (112, 24),
    }  # fmt: skip
    without = ("attn_k.weight", "attn_v.weight", "ffn_gate.weight")
    return [transformer(name, layer=layer, without=without, tied=True, metadata=keys)]
