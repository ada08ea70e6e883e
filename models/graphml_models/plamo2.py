"""PLaMo 2 (Preferred Networks 2025, arXiv:2509.04897): Mamba with a decay for a head, attention between.

Norms on both sides of the blocks. T tokens, O output rows, D model width, I inner width, N heads.
"""

from __future__ import annotations

from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models import _ssm_samples as samples
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._ffn import halved_ffn
from graphml_models._samples import POST_NORMS
from graphml_models._ssm import Hybrid, convolved, read_hybrid


class Config(Hybrid):
    """As of every hybrid, without groups."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(**vars(read_hybrid(keys, groups=False)))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""

    def norm(tensors: Tensors, x: Node, name: str) -> Node:
        return g.rms_norm(x, tensors[name], config.norm_eps, name)

    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD, of = norm(layer, x_TD, "attn_norm"), config.of(layer)
        if of is None:
            h_TD = state_space(g, config, layer, h_TD)
            h_TD = layer.linear(h_TD, "ssm_out", "mixed", scaled=False)
        else:
            h_TD = attention(g, of, layer, table, h_TD)
            h_TD = layer.linear(h_TD, "attn_output", "mixed")
        x_TD = g.add(x_TD, norm(layer, h_TD, "post_attention_norm"), "mixed_residual")
        h_TD = halved_ffn(g, layer, norm(layer, x_TD, "ffn_norm"))
        x_TD = g.add(x_TD, norm(layer, h_TD, "post_ffw_norm"), "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm"))


def attention(g: Builder, config: _config.Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention over normed heads before its output projection."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox", norm_heads)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.head_dim**-0.5)


def state_space(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Before the output projection, [T, I]: gate and input lie head by head; B, C and dt are normed."""
    ssm, width = config.ssm, config.ssm.d_inner // config.ssm.dt_rank
    zx = layer.linear(x_TD, "ssm_in", "ssm_in", scaled=False, rows=2 * ssm.d_inner)
    heads = g.heads(zx, ssm.dt_rank)
    z_TI, x_TI = (g.flatten(g.columns(heads, i * width, (i + 1) * width)) for i in (0, 1))
    x_TI = convolved(ssm, layer, x_TI)
    n_dt = max(64, config.n_embd // 16)
    bcdt = layer.linear(x_TI, "ssm_x", "b_c_dt", rows=2 * ssm.d_state + n_dt)
    ends = {"b": ssm.d_state, "c": 2 * ssm.d_state, "dt": 2 * ssm.d_state + n_dt}
    start, parts = 0, {}
    for name, end in ends.items():
        part = g.columns(bcdt, start, end)
        parts[name] = g.rms_norm(part, layer[f"ssm_{name}_norm"], config.norm_eps, f"{name}_norm")
        start = end
    dt_TN = layer.linear(parts["dt"], "ssm_dt", "dt", rows=ssm.dt_rank)
    operands = (x_TI, dt_TN, layer["ssm_a"], parts["b"], parts["c"], layer["ssm_d"])
    y_TI = g.ssm_scan(*operands, layer.index, ssm.d_state, name="scan")
    return g.mul(g.silu(z_TI), y_TI, "gated")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    recurrent = {
        "ssm_in.weight": (256, 64), "ssm_conv1d.weight": (128, 4), "ssm_x.weight": (2 * 16 + 64, 128),
        "ssm_dt.weight": (4, 64), "ssm_dt.bias": (4,), "ssm_a": (4,), "ssm_d": (4,),
        "ssm_dt_norm": (64,), "ssm_b_norm": (16,), "ssm_c_norm": (16,), "ssm_out.weight": (64, 128),
    }  # fmt: skip
    layer = {**POST_NORMS, "attn_q_norm.weight": (4, 16), "attn_k_norm.weight": (2, 16),
             "attn_qkv.weight": (128, 64), "ffn_up.weight": (192, 64)}  # fmt: skip
    without = ("ffn_gate.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    return [samples.mixed(name, "plain", recurrent, samples.sizes(), layer, without=without)]
