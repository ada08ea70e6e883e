"""Latent attention (DeepSeek-V2, 2024, arXiv:2405.04434): keys and values are made of one narrow value.

T tokens, D model width, N heads, R width of the latent, P width of what rotates, I width of the other part of
queries and keys, V width of a head's values.
"""

from __future__ import annotations

from typing import NamedTuple

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Layer
from graphml_models._config import Config


class Latent(NamedTuple):
    """What latent attention is made of: queries in two parts, the latent, and a key that all heads share.

    q_TNI: None where I is 0.
    """

    q_TNI: Node | None
    q_TNP: Node
    kv_TR: Node
    k_T1P: Node

    def rotated(self, g: Builder, table: Node, mode: str = "norm") -> Latent:
        """With positions; mode: as of `Builder.rope`."""
        q_TNP, k_T1P = g.rope(self.q_TNP, table, mode, "q_rope"), g.rope(self.k_T1P, table, mode, "k_rope")
        return self._replace(q_TNP=q_TNP, k_T1P=k_T1P)


def narrow_queries(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """The narrow value that the larger models make queries of."""
    narrow = layer.linear(x_TD, "attn_q_a", "q_a")
    return g.rms_norm(narrow, layer["attn_q_a_norm"], config.norm_eps, "q_norm")


def queries(g: Builder, config: Config, layer: Layer, x_TD: Node, narrow: Node | None = None) -> Node:
    """Queries [T, N, I + P], by way of a narrow value in the larger models.

    narrow: what `narrow_queries` returned, if it was called already.
    """
    if layer.get("attn_q"):
        q_TE = layer.linear(x_TD, "attn_q", "q")
    else:
        q_TE = layer.linear(
            narrow_queries(g, config, layer, x_TD) if narrow is None else narrow, "attn_q_b", "q"
        )
    return g.heads(q_TE, config.n_head)


def latent(g: Builder, config: Config, layer: Layer, q_TNH: Node, x_TD: Node) -> Latent:
    """The parts of attention without positions; q_TNH: from `queries`."""
    n_rot, width = config.rope.n_rot, fixed(q_TNH.shape[2])
    if width < n_rot:
        raise ArchitectureError(f"rope.dimension_count: wanted at most {width}, a head's width; got {n_rot}")
    q_TNI = g.columns(q_TNH, 0, width - n_rot) if width > n_rot else None
    q_TNP = g.columns(q_TNH, width - n_rot, width)
    kv_TE = layer.linear(x_TD, "attn_kv_a_mqa", "kv")
    n_latent, norm_R = fixed(kv_TE.shape[1]) - n_rot, layer["attn_kv_a_norm"]
    kv_TR = g.rms_norm(g.columns(kv_TE, 0, n_latent), norm_R, config.norm_eps, "kv_norm")
    k_T1P = g.heads(g.columns(kv_TE, n_latent, n_latent + n_rot), 1)
    return Latent(q_TNI, q_TNP, kv_TR, k_T1P)


def folded(
    g: Builder,
    layer: Layer,
    parts: Latent,
    scale: float,
    window: int = 0,
    sinks: Node | None = None,
    selected: Node | None = None,
) -> Node:
    """Attention before its output projection, [T, N * V]: all heads read one latent of each token.

    The matrices that would make keys and values of it are applied to queries and outputs. sinks, selected: as
    of `Builder.attend`.
    """
    q_TNI, q_TNP, kv_TR, k_T1P = parts
    assert q_TNI is not None
    q_TNE = g.concat(g.per_head(layer["attn_k_b"], q_TNI, "q_latent"), q_TNP)
    k_T1E = g.concat(g.heads(kv_TR, 1), k_T1P)
    y_TE = g.attend(q_TNE, k_T1E, None, layer.index, scale, window, sinks=sinks, selected=selected)
    y_TNE = g.heads(y_TE, fixed(q_TNE.shape[1]))
    y_TNR = g.columns(y_TNE, 0, fixed(kv_TR.shape[1]))
    return g.flatten(g.per_head(layer["attn_v_b"], y_TNR, "v"))


def unfolded(g: Builder, config: Config, layer: Layer, parts: Latent) -> Node:
    """Attention before its output projection, [T, N * V], with every head's keys and values in the cache."""
    q_TNI, q_TNP, kv_TR, k_T1P = parts
    kv_TNE = g.heads(layer.linear(kv_TR, "attn_kv_b", "kv_unfolded"), config.n_head)
    rest = 0 if q_TNI is None else fixed(q_TNI.shape[2])
    v_TNV = g.columns(kv_TNE, rest, fixed(kv_TNE.shape[2]), "v")
    q_TNH, k_TNH = q_TNP, g.repeat(k_T1P, config.n_head)
    if q_TNI is not None:
        q_TNH, k_TNH = g.concat(q_TNI, q_TNH), g.concat(g.columns(kv_TNE, 0, rest), k_TNH)
    return g.attend(q_TNH, k_TNH, v_TNV, layer.index, config.scale)
