"""PLaMo 3 (Preferred Networks 2025, "PLaMo 3"): windows, norms on heads and on both sides of the blocks.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, _windows
from graphml_models._attention import norm_heads
from graphml_models._ffn import halved_ffn
from graphml_models._samples import HEAD_NORMS, POST_NORMS, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, rope_tables


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=8, size=0)
        return cls(
            **vars(known), windows=windows, local_rope=read_local_rope(keys, known.rope, 10000.0, False)
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""

    def norm(tensors: Tensors, x: Node, name: str) -> Node:
        return g.rms_norm(x, tensors[name], config.norm_eps, name)

    tables = rope_tables(g, weights, config.rope, config.local_rope)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        table = tables[config.windows[layer.index] > 0]
        h_TD = _windows.attention(g, config, layer, table, norm(layer, x_TD, "attn_norm"), norm_heads)
        h_TD = norm(layer, layer.linear(h_TD, "attn_output", "attn_out"), "post_attention_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = halved_ffn(g, layer, norm(layer, x_TD, "ffn_norm"))
        x_TD = g.add(x_TD, norm(layer, h_TD, "post_ffw_norm"), "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    layer = {**HEAD_NORMS, **POST_NORMS, "attn_qkv.weight": (128, 64), "ffn_up.weight": (192, 64)}
    without = ("ffn_gate.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    keys = {"attention.sliding_window": 20, PATTERN: 2, "rope.freq_base_swa": 500.0}
    return [transformer(name, layer=layer, without=without, metadata=keys)]
