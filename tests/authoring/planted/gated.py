"""A decoder with much that can be mistaken: T tokens, O output rows, D width, N heads, K key-value heads.

Right as it stands; `tests/authoring/test_verify_against.py` plants mistakes by replacing parts of its text.
"""

from dataclasses import dataclass

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, Tensors


@dataclass(frozen=True)
class Config:
    n_ctx: int
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    eps: float
    base: float
    window: int

    @classmethod
    def read(cls, keys: Keys) -> "Config":
        return cls(
            keys.integer("context_length"), keys.n_vocab(), keys.integer("embedding_length"),
            keys.integer("block_count"), keys.integer("attention.head_count"),
            keys.integer("attention.head_count_kv"), keys.integer("attention.key_length"),
            keys.number("attention.layer_norm_rms_epsilon"), keys.number("rope.freq_base"),
            keys.integer("attention.sliding_window"),
        )  # fmt: skip


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    table = g.rope_table(config.head_dim, weights["rope_freqs"], freq_base=config.base)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    x_TD = g.scale(x_TD, config.n_embd**0.5)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.eps)
        h_TD = attention(g, config, layer, table, h_TD)
        h_TD = layer.linear(h_TD, "attn_output")
        h_TD = g.rms_norm(h_TD, layer["post_attention_norm"], config.eps)
        x_TD = g.add(x_TD, h_TD)
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.eps)
        gate_TF, up_TF = layer.linear(h_TD, "ffn_gate"), layer.linear(h_TD, "ffn_up")
        x_TD = g.add(x_TD, layer.linear(g.mul(g.gelu(gate_TF), up_TF), "ffn_down"))
    x_OD = g.rows(g.rms_norm(x_TD, weights["output_norm"], config.eps), g.output_rows)
    return g.softcap(weights.linear(x_OD, "output"), 3.0)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    q_TNH = g.heads(layer.linear(x_TD, "attn_q"), config.n_head)
    k_TKH = g.heads(layer.linear(x_TD, "attn_k"), config.n_head_kv)
    v_TKH = g.heads(layer.linear(x_TD, "attn_v"), config.n_head_kv)
    q_TNH = g.rms_norm(q_TNH, layer["attn_q_norm"], config.eps)
    k_TKH = g.rms_norm(k_TKH, layer["attn_k_norm"], config.eps)
    q_TNH, k_TKH = g.rope(q_TNH, table, "neox"), g.rope(k_TKH, table, "neox")
    window = config.window if layer.index % 2 == 0 else 0
    scale = config.head_dim**-0.5
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, scale, window, softcap=4.0, sinks=layer["attn_sinks"])
