"""Kimi delta attention (Kimi Team 2025, arXiv:2510.26692): a delta net where each element of a key fades.

T tokens, D model width, N heads, H head width, E all heads' width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer
from graphml_models import _config, _routing
from graphml_models._delta_net import unit
from graphml_models._hybrid import convolution, read_heads
from graphml_models._routing import Routing
from graphml_models._samples import Metadata, Shapes

BOUND = "kda.gate_lower_bound"


@dataclass(frozen=True)
class Kda:
    """Sizes of the delta nets; n_conv: inputs of the convolutions; unit_eps: of lengths of queries and keys.

    bound: the least logarithm of a decay, minus infinity if there is none; rising: with a bound, `ssm_a` has
    the other sign in the file.
    """

    n_head: int
    head_dim: int
    n_conv: int
    bound: float
    norm_eps: float
    unit_eps: float
    rising: bool = False

    @classmethod
    def read(cls, keys: Keys, known: _config.Config, unit_eps: float) -> Self:
        """From the file's metadata; as many heads as attention has."""
        head_dim, bound = keys.integer("kda.head_dim"), keys.number(BOUND, float("-inf"))
        if head_dim < 1:
            raise keys.unsupported("kda.head_dim", "at least 1")
        if not bound < 0.0:
            raise keys.unsupported(BOUND, "a number below 0")
        return cls(
            n_head=known.n_head,
            head_dim=head_dim,
            n_conv=keys.integer("ssm.conv_kernel"),
            bound=bound,
            norm_eps=known.norm_eps,
            unit_eps=unit_eps,
        )


@dataclass(frozen=True)
class Config(_routing.Config):
    """As of every decoder with experts; the layers with latent attention, and the others' delta nets.

    The scale is that of the heads whose place the latent takes; latent_eps: of the norms of narrow values.
    """

    latent_eps: float
    kda: Kda
    attends: tuple[bool, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads, attends = read_heads(keys)
        known = _config.read(keys, heads=heads)
        width = keys.integer("attention.key_length_mla", known.head_dim)
        if width < 1:
            raise keys.unsupported("attention.key_length_mla", "at least 1")
        return cls(
            **vars(replace(known, scale=width**-0.5)),
            latent_eps=keys.number("attention.latent_norm_rms_epsilon", known.norm_eps),
            kda=Kda.read(keys, known, unit_eps=keys.number("kda.unit_epsilon", known.norm_eps)),
            attends=attends,
            routing=Routing.read(keys),
        )


def delta_attention(g: Builder, net: Kda, layer: Layer, x_TD: Node) -> Node:
    """Before its output projection, [T, E]; without biases and scales of the matrices, as in llama.cpp."""
    n_head, width = net.n_head, net.n_head * net.head_dim

    def through(name: str, then: str = "") -> Node:
        """The product with a matrix, and with the next if the file has it or the first is too narrow."""
        two = then and (layer.get(then) or layer[name].shape[0] != width)
        names = [name, then] if two else [name]
        y = x_TD
        for matrix in names:
            y = layer.without("*.bias").linear(
                y, matrix, scaled=False, rows=width if matrix == names[-1] else None
            )
        return y

    def channels(what: str) -> Node:
        name = f"ssm_conv1d_{what}"
        seen_TE = convolution(g, layer, name, through(f"attn_{what}"), net.n_conv, f"conv_{what}")
        return g.heads(g.silu(seen_TE), n_head, f"{what}_conv")

    q_TNH, k_TNH = (unit(g, channels(what), net.unit_eps, f"{what}_unit") for what in "qk")
    rate_TE = g.add(through("ssm_f_a", "ssm_f_b"), layer["ssm_dt.bias"])
    beta_TN = g.sigmoid(of_each_head(g, layer, "ssm_beta", x_TD, n_head), "beta")
    y_TNH = g.gated_delta_net(
        *(q_TNH, k_TNH, channels("v"), g.heads(_decay(g, net, layer, rate_TE), n_head)),
        *(g.reshape(beta_TN, n_head, 1), layer.index, net.head_dim**-0.5),
    )
    y_TNH = g.rms_norm(y_TNH, layer["ssm_norm"], net.norm_eps, "delta_norm")
    gate_TE = through("ssm_g" if layer.get("ssm_g") else "ssm_g_a", "ssm_g_b")
    return g.mul(g.flatten(y_TNH), g.sigmoid(gate_TE), "gated")


def _decay(g: Builder, net: Kda, layer: Layer, rate_TE: Node) -> Node:
    """What each element of a head's memory is multiplied with, [T, E]."""
    a_E = g.flatten(g.repeat(g.reshape(layer["ssm_a"], net.n_head, 1, 1, keep=0), net.head_dim))
    a_E = g.reshape(a_E, net.n_head * net.head_dim, keep=0)
    if net.bound == float("-inf"):
        return g.exp(g.mul(g.softplus(rate_TE), a_E), "decay")
    share_TE = g.sigmoid(g.scale(g.mul(rate_TE, a_E), 1.0 if net.rising else -1.0))
    return g.exp(g.scale(share_TE, net.bound), "decay")


def of_each_head(g: Builder, layer: Layer, name: str, x_TD: Node, n_head: int) -> Node:
    """A number for each head, [T, N]; files drop the dimension of a single head."""
    weight = layer[name]
    if len(weight.shape) == 1:
        weight = g.reshape(weight, n_head, fixed(x_TD.shape[1]), keep=0)
    return g.mul_mat(weight, x_TD, name)


# Of a tiny model: 4 heads, 16 wide; latent attention with R 24, P 8, I 12, V 16.
KEYS: Metadata = {
    "ssm.conv_kernel": 4, "kda.head_dim": 16, "attention.head_count_kv": [0, 1], "attention.key_length": 32,
    "attention.key_length_mla": 20, "rope.dimension_count": 8, "expert_gating_func": 2,
}  # fmt: skip
TENSORS: Shapes = {
    **{f"attn_{what}.weight": (64, 64) for what in "qkv"},
    **{f"ssm_conv1d_{what}.weight": (64, 1, 4) for what in "qkv"},
    "attn_output.weight": (64, 64), "ssm_a": (4,), "ssm_dt.bias": (64,), "ssm_beta.weight": (4, 64),
    "ssm_f_a.weight": (64, 64), "ssm_g_a.weight": (64, 64), "ssm_norm.weight": (16,),
}  # fmt: skip
LATENT: Shapes = {
    "attn_q.weight": (80, 64), "attn_kv_a_mqa.weight": (32, 64), "attn_kv_a_norm.weight": (24,),
    "attn_k_b.weight": (4, 24, 12), "attn_v_b.weight": (4, 16, 24), "attn_output.weight": (64, 64),
}  # fmt: skip
