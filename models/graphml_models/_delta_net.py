"""Gated delta net (Yang et al. 2024, arXiv:2412.06464) as Qwen's hybrid models have it, and their attention.

T tokens, D model width, N heads, K key-value heads, H head width; in delta nets N heads of values, G of
queries and keys, all H wide, and C channels of the convolution: 2 G H + N H.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer
from graphml_models import _config
from graphml_models._attention import norm_heads, project, rotate
from graphml_models._ffn import Activation
from graphml_models._hybrid import convolution, read_attending
from graphml_models._samples import HEAD_NORMS, Shapes


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of a delta net; n_conv: inputs of the convolution."""

    n_head: int
    n_group: int
    head_dim: int
    n_conv: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata, whose names are those of state space models."""
        n_head, n_group = keys.integer("ssm.time_step_rank"), keys.integer("ssm.group_count")
        head_dim = keys.integer("ssm.state_size")
        if n_head < 1 or n_group < 1 or n_head % n_group:
            raise keys.unsupported("ssm.time_step_rank", f"a multiple of the {n_group} groups")
        if keys.integer("ssm.inner_size") != n_head * head_dim or head_dim < 1:
            raise keys.unsupported("ssm.inner_size", f"{n_head} heads of {head_dim}")
        return cls(n_head, n_group, head_dim, keys.integer("ssm.conv_kernel"))

    @property
    def key_width(self) -> int:
        """Elements of all keys, or queries, of a token."""
        return self.n_group * self.head_dim


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; the delta nets, and which layers have attention instead."""

    net: DeltaNet
    attends: tuple[bool, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), net=DeltaNet.read(keys), attends=read_attending(keys, interval=4))


def attention(g: Builder, config: _config.Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, gated, before its output projection, [T, N * H].

    A head's gate is behind its query.
    """
    both, k_TKH, v_TKH = project(g, replace(config, n_head=2 * config.n_head), layer, x_TD)
    both_TNE = g.reshape(both, config.n_head, 2 * config.head_dim)
    q_TNH = g.columns(both_TNE, 0, config.head_dim, "q")
    gate_TNH = g.columns(both_TNE, config.head_dim, 2 * config.head_dim, "gate")
    q_TNH, k_TKH = norm_heads(g, config, layer, q_TNH, k_TKH)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    y_TE = g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)
    return g.mul(y_TE, g.sigmoid(g.flatten(gate_TNH)), "gated")


def unit(g: Builder, x_TGH: Node, eps: float, name: str) -> Node:
    """Heads over their lengths, the square root of their squares' sum plus eps."""
    width = fixed(x_TGH.shape[2])
    return g.scale(g.rms_norm(x_TGH, None, eps / width), width**-0.5, name=name)


def delta_net(
    g: Builder,
    config: Config,
    layer: Layer,
    inputs: tuple[Node, Node, Node, Node],
    grouped: bool = False,
    activation: Activation = Builder.silu,
) -> Node:
    """A delta net before its output projection, [T, N * H].

    inputs: channels [T, C], gate of the output [T, N * H], beta and alpha [T, N]; activation: of the gate;
    grouped: neighbouring heads of values share keys, else those that are G apart.
    """
    net, (x_TC, gate_TV, beta_TN, alpha_TN) = config.net, inputs
    x_TC = g.silu(convolution(g, layer, "ssm_conv1d", x_TC, net.n_conv), "conv_silu")
    keys = net.key_width
    q_TGH = unit(g, g.heads(g.columns(x_TC, 0, keys), net.n_group), config.norm_eps, "q")
    k_TGH = unit(g, g.heads(g.columns(x_TC, keys, 2 * keys), net.n_group), config.norm_eps, "k")
    v_TNH = g.heads(g.columns(x_TC, 2 * keys, fixed(x_TC.shape[1])), net.n_head, "v")
    rate_TN = g.softplus(g.add(alpha_TN, layer["ssm_dt.bias"]))
    decay_TN = g.exp(g.mul(rate_TN, layer["ssm_a"]), "decay")
    y_TNH = g.gated_delta_net(
        *(q_TGH, k_TGH, v_TNH, g.reshape(decay_TN, net.n_head, 1)),
        g.reshape(g.sigmoid(beta_TN, "beta"), net.n_head, 1),
        *(layer.index, net.head_dim**-0.5),
        grouped=grouped,
    )
    y_TNH = g.rms_norm(y_TNH, layer["ssm_norm"], config.norm_eps, "delta_norm")
    return g.mul(g.flatten(y_TNH), activation(g, gate_TV), "gated")


def out(layer: Layer, h_TE: Node, scaled: bool = True) -> Node:
    """The projection behind a layer's attention or delta net; scaled: of the latter, see `Tensors.scale`."""
    if layer.get("ssm_out"):
        return layer.linear(h_TE, "ssm_out", "attn_out", scaled=scaled)
    return layer.linear(h_TE, "attn_output", "attn_out")


# Tensors of a tiny delta net: 2 heads of keys and 4 of values, 16 wide; and its keys.
KEYS = {"ssm.inner_size": 64, "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 4,
        "ssm.group_count": 2}  # fmt: skip
TENSORS: Shapes = {
    "attn_qkv.weight": (128, 64), "attn_gate.weight": (64, 64), "ssm_conv1d.weight": (128, 4),
    "ssm_dt.bias": (4,), "ssm_a": (4,), "ssm_beta.weight": (4, 64), "ssm_alpha.weight": (4, 64),
    "ssm_norm.weight": (16,), "ssm_out.weight": (64, 64),
}  # fmt: skip
GATED_HEADS: Shapes = {**HEAD_NORMS, "attn_q.weight": (128, 64), "post_attention_norm.weight": (64,)}
