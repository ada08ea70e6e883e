"""ARWKV (Lin et al. 2025, arXiv:2501.15570): Qwen2 with RWKV-7's memory in the place of attention.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models import _config, llama, rwkv7
from graphml_models._layer_norm import no_tables
from graphml_models.rwkv6 import ahead, normed_heads
from graphml_models.rwkv6qwen2 import Config as Config
from graphml_models.rwkv6qwen2 import tiny

MIXES = "blk.1.time_mix"


def attention(
    g: Builder, config: _config.Config, layer: Layer, table: Node, x_TD: Node, first: list[Node]
) -> Node:
    """What the memory gives, behind its output projection, [T, D]; first: layer 0's v."""
    ahead_TD = ahead(g, layer, x_TD, "time_shift")
    return rwkv7.time_mix(g, config, layer, x_TD, ahead_TD, first, norm_if_any)


def norm_if_any(g: Builder, layer: Layer, y_TNH: Node) -> Node:
    """The heads, normed where the file has the weights, [T, D]."""
    norm = layer.get("time_mix_ln", "time_mix_ln.bias")
    return g.flatten(y_TNH) if norm is None else normed_heads(g, layer, y_TNH)


def build(g: Builder, config: _config.Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    mix = partial(attention, first=[])
    return llama.build(g, config, weights, mix, project=lambda layer, h: h, tables=no_tables)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: with a gate and norms of the heads, and without both."""
    gated, ungated = (
        {tensor.removeprefix("blk.1."): shape for tensor, shape in model.tensors.items() if MIXES in tensor}
        for model in rwkv7.sample(name)
    )
    bare = {part: shape for part, shape in ungated.items() if "time_mix_ln" not in part}
    gone = tuple(f"blk.0.time_mix_v{i}.weight" for i in range(3))  # the first layer mixes with none
    return [
        tiny(name, kind, layer, n_head_kv=4, gone=gone)
        for kind, layer in (("plain", gated), ("ungated", bare))
    ]
