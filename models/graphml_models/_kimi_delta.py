"""Kimi delta attention (Kimi Team 2025, arXiv:2510.26692): delta nets whose decay each element of a key has.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.engine.architecture import Keys, Layer
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml_models._delta_net import unit
from graphml_models._hybrid import convolution
from graphml_models._samples import Shapes

LOWEST = "kda.gate_lower_bound"


@dataclass(frozen=True)
class KimiDelta:
    """Sizes of the delta nets; n_conv: inputs of the convolutions; unit_eps: of lengths of queries and keys.

    lowest: the logarithm of the fastest decay, 0 if there is none.
    """

    n_head: int
    head_dim: int
    n_conv: int
    lowest: float
    unit_eps: float
    norm_eps: float

    @classmethod
    def read(cls, keys: Keys, n_head: int, norm_eps: float, unit_eps: float) -> KimiDelta:
        """From the file's metadata."""
        head_dim, lowest = keys.integer("kda.head_dim"), keys.number(LOWEST, 0.0)
        if head_dim < 1:
            raise keys.unsupported("kda.head_dim", "at least 1")
        return cls(n_head, head_dim, keys.integer("ssm.conv_kernel"), lowest, unit_eps, norm_eps)


def kimi_delta(
    g: Builder, net: KimiDelta, layer: Layer, x_TD: Node, gate: tuple[str, ...] = ("ssm_g_a", "ssm_g_b")
) -> Node:
    """A delta net before its output projection, [T, N * H]; gate: the matrices, in turn, of its gate."""
    n_head, width = net.n_head, net.n_head * net.head_dim
    bare = layer.without("*.bias")  # of matrices

    def through(*names: str) -> Node:
        y = x_TD
        for name in names:
            y = bare.linear(y, name, scaled=False, rows=width if name == names[-1] else None)
        return y

    def heads(name: str) -> Node:
        x_TE = convolution(
            g, layer, f"ssm_conv1d_{name}", through(f"attn_{name}"), net.n_conv, f"conv_{name}"
        )
        return g.heads(g.silu(x_TE), n_head, name)

    q_TNH, k_TNH, v_TNH = (heads(name) for name in "qkv")
    q_TNH, k_TNH = unit(g, q_TNH, net.unit_eps, "q_unit"), unit(g, k_TNH, net.unit_eps, "k_unit")
    rate_TE = g.add(through("ssm_f_a", "ssm_f_b"), layer["ssm_dt.bias"])
    a_N1 = g.reshape(layer["ssm_a"], n_head, 1, keep=0)  # below 0
    if net.lowest:
        steep_TNH = g.scale(g.mul(g.heads(rate_TE, n_head), a_N1), -1.0)
        rate_TNH = g.scale(g.sigmoid(steep_TNH), net.lowest)
    else:
        rate_TNH = g.mul(g.heads(g.softplus(rate_TE), n_head), a_N1)
    beta_TN = g.sigmoid(bare.linear(x_TD, "ssm_beta", "beta", scaled=False, rows=n_head))
    y_TNH = g.gated_delta_net(
        *(q_TNH, k_TNH, v_TNH, g.exp(rate_TNH, "decay"), g.reshape(beta_TN, n_head, 1)),
        *(layer.index, net.head_dim**-0.5),
    )
    y_TNH = g.rms_norm(y_TNH, layer["ssm_norm"], net.norm_eps, "delta_norm")
    return g.mul(g.flatten(y_TNH), g.sigmoid(through(*gate), "gate"), "gated")


# A tiny one: 4 heads, 16 wide, with the tensors of `attn_q`, `attn_k` and `attn_v` for 4 heads.
KEYS = {"kda.head_dim": 16, "ssm.conv_kernel": 4}
TENSORS: Shapes = {
    **{f"ssm_conv1d_{name}.weight": (64, 1, 4) for name in "qkv"}, "ssm_f_a.weight": (16, 64),
    "ssm_f_b.weight": (64, 16), "ssm_g_a.weight": (16, 64), "ssm_g_b.weight": (64, 16),
    "ssm_beta.weight": (4, 64), "ssm_a": (4,), "ssm_dt.bias": (64,), "ssm_norm.weight": (16,),
}  # fmt: skip
