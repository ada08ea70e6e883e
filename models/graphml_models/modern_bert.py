"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): norms before the blocks, rope, GEGLU and windows.

T tokens, O output rows, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml.loading.rank import Rank
from graphml_models import _config, _layer_norm, _windows
from graphml_models._attention import rotated_heads
from graphml_models._ffn import halved_ffn
from graphml_models._layer_norm import norm
from graphml_models._samples import FUSED_QKV, N_EMBD, N_FF, layer_norm_transformer
from graphml_models._windows import read_local_rope, read_windows, rope_tables

CAUSAL, OUTPUT = False, "embeddings"
RANK = Rank("mean", Builder.gelu_erf)


@dataclass(frozen=True)
class Config(_layer_norm.Config, _windows.Config):
    """As of the family, with windows."""

    silu: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        activation = keys.text("hidden_activation", "gelu")
        if activation not in ("gelu", "silu"):
            raise keys.unsupported("hidden_activation", "gelu or silu")
        windows = read_windows(keys, known.n_layer, period=3, all_first=True, size=0)
        local = read_local_rope(keys, known.rope)
        return cls(**vars(known), windows=windows, local_rope=local, silu=activation == "silu")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Hidden rows [O, D]; the first layer has no norm, for what it is given is normed."""
    tables = rope_tables(g, weights, config.rope, config.local_rope)
    x_TD = norm(weights, g.embed(weights["token_embd"], g.tokens), "token_embd_norm", config.norm_eps)
    for layer in weights.layers(config.n_layer):
        whole = layer.index == 0 and layer.get("attn_norm") is None
        h_TD = attention(
            g, config, layer, tables, x_TD if whole else norm(layer, x_TD, "attn_norm", config.norm_eps)
        )
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        activation = Builder.silu if config.silu else Builder.gelu_erf
        h_TD = halved_ffn(g, layer, norm(layer, x_TD, "ffn_norm", config.norm_eps), activation)
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return norm(weights, x_TD, "output_norm", config.norm_eps)


def attention(g: Builder, config: Config, layer: Layer, tables: dict[bool, Node], x_TD: Node) -> Node:
    """Attention to half a window on either side, or to all of the text, [T, N * H]."""
    window = config.windows[layer.index]
    q_TNH, k_TNH, v_TNH = rotated_heads(g, config, layer, tables[window > 0], x_TD, "neox")
    return g.attend(q_TNH, k_TNH, v_TNH, layer.index, config.scale, window)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: the first of two layers sees all of a text."""
    keys = {"attention.sliding_window": 16, "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0}
    layer = {"ffn_up.weight": (2 * N_FF, N_EMBD), "attn_qkv.weight": FUSED_QKV["attn_qkv.weight"]}
    return [
        layer_norm_transformer(name, biases=False, tied=True, top={"token_embd_norm.weight": (N_EMBD,)},
                               layer=layer, metadata=keys, without=("blk.0.attn_norm.weight",))
    ]  # fmt: skip
