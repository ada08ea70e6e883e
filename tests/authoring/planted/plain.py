"""The family of GPT-2 with what else there is of it: T tokens, O output rows, D width, N heads, H head width.

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
    n_layer: int
    n_head: int
    head_dim: int
    eps: float
    residual: float
    logits: float

    @classmethod
    def read(cls, keys: Keys) -> "Config":
        n_head = keys.integer("attention.head_count")
        return cls(
            keys.integer("context_length"), keys.n_vocab(), keys.integer("block_count"), n_head,
            keys.integer("embedding_length") // n_head, keys.number("attention.layer_norm_epsilon"),
            keys.number("residual_scale"), keys.number("logit_scale"),
        )  # fmt: skip


def norm(g: Builder, config: Config, weights: Tensors, name: str, x: Node) -> Node:
    return g.layer_norm(x, weights[name], weights[f"{name}.bias"], config.eps)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    x_TD = g.add(g.embed(weights["token_embd"], g.tokens), g.rows(weights["position_embd"], g.positions))
    for layer in weights.layers(config.n_layer):
        h_TD = norm(g, config, layer, "attn_norm", x_TD)
        a_TD = layer.linear(attention(g, config, layer, h_TD), "attn_output")
        y_TD = g.add(x_TD, g.scale(a_TD, config.residual))
        h_TD = norm(g, config, layer, "ffn_norm", y_TD)
        h_TD = layer.linear(g.relu(layer.linear(h_TD, "ffn_up")), "ffn_down")
        x_TD = g.add(y_TD, g.scale(h_TD, config.residual))
    x_OD = norm(g, config, weights, "output_norm", g.rows(x_TD, g.output_rows))
    return g.scale(weights.linear(x_OD, "token_embd"), config.logits)


def attention(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    width = config.n_head * config.head_dim
    qkv = layer.linear(x_TD, "attn_qkv")
    q, k, v = (g.heads(g.columns(qkv, i * width, (i + 1) * width), config.n_head) for i in range(3))
    return g.attend(q, k, v, layer.index, config.head_dim**-0.5, max_bias=8.0)
