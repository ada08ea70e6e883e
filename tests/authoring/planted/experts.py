"""Experts, chosen and shared, behind rotary attention: T tokens, O output rows, D width, E experts, U used.

Right as it stands; `tests/authoring/test_verify_against.py` plants mistakes by replacing parts of its text.
"""

from dataclasses import dataclass

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, Tensors


@dataclass(frozen=True)
class Config:
    n_ctx: int
    n_vocab: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_rot: int
    eps: float
    n_used: int
    scale: float
    stretch: float

    @classmethod
    def read(cls, keys: Keys) -> "Config":
        return cls(
            keys.integer("context_length"), keys.n_vocab(), keys.integer("block_count"),
            keys.integer("attention.head_count"), keys.integer("attention.head_count_kv"),
            keys.integer("rope.dimension_count"), keys.number("attention.layer_norm_rms_epsilon"),
            keys.integer("expert_used_count"), keys.number("expert_weights_scale"),
            keys.number("rope.scaling.factor"),
        )  # fmt: skip


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    table = g.rope_table(config.n_rot, freq_scale=1.0 / config.stretch)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.eps)
        x_TD = g.add(x_TD, layer.linear(attention(g, config, layer, table, h_TD), "attn_output"))
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.eps)
        y_TD = experts(g, config, layer, h_TD, x_TD)
        gate_TF, up_TF = layer.linear(h_TD, "ffn_gate_shexp"), layer.linear(h_TD, "ffn_up_shexp")
        y_TD = g.add(y_TD, layer.linear(g.mul(g.silu(gate_TF), up_TF), "ffn_down_shexp"))
        x_TD = g.add(x_TD, y_TD)
    x_OD = g.rms_norm(g.rows(x_TD, g.output_rows), weights["output_norm"], config.eps)
    return weights.linear(x_OD, "output")


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    q_TNH = g.rope(g.heads(layer.linear(x_TD, "attn_q"), config.n_head), table, "norm")
    k_TKH = g.rope(g.heads(layer.linear(x_TD, "attn_k"), config.n_head_kv), table, "norm")
    v_TKH = g.heads(layer.linear(x_TD, "attn_v"), config.n_head_kv)
    width = fixed(q_TNH.shape[2])
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, width**-0.5)


def experts(g: Builder, config: Config, layer: Layer, x_TD: Node, stream_TD: Node) -> Node:
    scores_TE = g.softmax(layer.linear(x_TD, "ffn_gate_inp"))
    ids_TU = g.top_k(scores_TE, config.n_used)
    weights_TU = g.gather(scores_TE, ids_TU)
    weights_TU = g.div(weights_TU, g.sum_rows(weights_TU))
    weights_TU = g.scale(weights_TU, config.scale)
    gate_TUF = g.mul_mat_id(layer["ffn_gate_exps"], x_TD, ids_TU)
    up_TUF = g.mul_mat_id(layer["ffn_up_exps"], x_TD, ids_TU)
    down_TUD = g.mul_mat_id(layer["ffn_down_exps"], g.mul(g.silu(gate_TUF), up_TUF), ids_TU)
    down_TUD = g.mul(down_TUD, g.reshape(weights_TU, config.n_used, 1))
    return g.reshape(g.sum_rows(g.permute(down_TUD, 0, 2, 1)), fixed(x_TD.shape[1]))
