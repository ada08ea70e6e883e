"""HRM-Text (Wang et al. 2025, arXiv:2506.21734; its text model 2026): two stacks of layers that take turns.

In each cycle the low stack refines its own value several times beside the high stack's, then the high one
its own. Each pass has keys and values of its own. Norms have no weights; attention is gated. All attention is
causal, whatever `prefix_lm` says, as in llama.cpp. T tokens, D model width, N
heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer

N_LAYER = "hrm.layers_per_stack"


@dataclass(frozen=True)
class Config(_config.Config):
    """And layers of a stack, cycles, passes of the low stack in each; a factor of embeddings."""

    stack: int
    high_cycles: int
    low_cycles: int
    embedding_scale: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata, whose layers are counted once for each pass."""
        known = _config.read(keys)
        stack, high, low = (keys.integer(key) for key in (N_LAYER, "hrm.h_cycles", "hrm.l_cycles"))
        if min(stack, high, low) < 1 or stack * high * (low + 1) != known.n_layer:
            raise keys.unsupported(N_LAYER, f"all {known.n_layer} layers in {high} cycles of {low} + 1")
        factor = keys.number("embedding_scale", 0.0) or 1.0
        return cls(**vars(known), stack=stack, high_cycles=high, low_cycles=low, embedding_scale=factor)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, gated, before its output projection, [T, N * H]."""
    y_TD = llama.attention(g, config, layer, table, x_TD, mode="neox")
    return g.mul(y_TD, g.sigmoid(layer.linear(x_TD, "attn_gate", "attn_gate", scaled=False)), "gated")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table, eps = config.rope.table(g, weights), config.norm_eps
    low, high = [*range(config.stack)], [*range(config.stack, 2 * config.stack)]
    embedding_TD = g.embed(weights["token_embd"], g.tokens)
    high_TD = x_TD = g.scale(embedding_TD, config.embedding_scale, name="embedding_scaled")
    low_TD = weights["hrm.z_l_init"]  # [D] of every token, until the first pass
    blocks = (low * config.low_cycles + high) * config.high_cycles
    own_scales = weights.get(f"blk.{len(blocks) - 1}.attn_output.scale") is not None
    for layer in weights.layers(blocks, own_scales):
        passes, place = divmod(layer.index, config.stack)
        if place == 0:
            x_TD = g.add(high_TD, low_TD, "stack_input")
        h_TD = attention(g, config, layer, table, g.rms_norm(x_TD, None, eps, "attn_norm"))
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = gated_ffn(g, layer, g.rms_norm(x_TD, None, eps, "ffn_norm"))
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
        if place == config.stack - 1:
            x_TD = g.rms_norm(x_TD, None, eps, "stack_norm")
            if passes % (config.low_cycles + 1) < config.low_cycles:
                low_TD = x_TD
            else:
                high_TD = x_TD
    return weights.logits(high_TD)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: stacks of one layer, two cycles of two passes of the low one."""
    keys = {"block_count": 6, N_LAYER: 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2, "embedding_scale": 3.0}
    without = ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")
    layer, top = {"attn_gate.weight": (64, 64)}, {"hrm.z_l_init": (64,)}
    return [transformer(name, tied=True, metadata=keys, layer=layer, top=top, without=without)]
