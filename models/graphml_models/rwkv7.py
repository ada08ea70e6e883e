"""RWKV-7 (Peng et al. 2025, arXiv:2503.14456): rwkv6 whose memory removes and replaces.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models import _config, rwkv6
from graphml_models._samples import Shapes
from graphml_models.rwkv6 import Config as Config
from graphml_models.rwkv6 import normed_heads, row, squared_ffn, tiny

HeadsNorm = Callable[[Builder, Layer, Node], Node]
FASTEST = -0.606531  # minus e to the minus 0.5: the least logarithm of a decay


def time_mix(
    g: Builder, config: _config.Config, layer: Layer, x_TD: Node, ahead_TD: Node, first: list[Node],
    norm: HeadsNorm = normed_heads,
) -> Node:  # fmt: skip
    """What the memory gives, [T, D]; ahead: by how much the token before differs; first: layer 0's v.

    norm: from what the heads read of the memory to [T, D].
    """
    mixed = _mixed(g, layer, x_TD, ahead_TD)
    r_TD, k_TD, v_TD = (
        layer.linear(mixed[what], f"time_mix_{name}", name)
        for what, name in (("r", "receptance"), ("k", "key"), ("v", "value"))
    )
    decay_TD = g.exp(g.scale(g.sigmoid(_narrow(g, layer, mixed["w"], "w", bent=True)), FASTEST), "decay")
    rate_TD = g.sigmoid(_narrow(g, layer, mixed["a"], "a"), "rate")
    if first:
        share_TD = g.sigmoid(_narrow(g, layer, mixed["v"], "v"))
        v_TD = g.add(v_TD, g.mul(g.sub(first[0], v_TD), share_TD), "v_mixed_with_first")
    else:
        first.append(v_TD)
    removed_TNH = g.l2_norm(g.heads(g.mul(k_TD, layer["time_mix_k_k"]), config.n_head), 1e-12, "removed")
    part_TD = g.mul(k_TD, layer["time_mix_k_a"])
    k_TD = g.add(k_TD, g.sub(g.mul(rate_TD, part_TD), part_TD), "k_written")
    r_TNH, k_TNH, v_TNH, decay_TNH, rate_TNH = (
        g.heads(values_TD, config.n_head) for values_TD in (r_TD, k_TD, v_TD, decay_TD, rate_TD)
    )
    gates = (decay_TNH, g.scale(removed_TNH, -1.0), g.mul(removed_TNH, rate_TNH))
    y_TD = norm(g, layer, g.linear_attention(r_TNH, k_TNH, v_TNH, layer.index, gates))
    ours_NH = g.reshape(layer["time_mix_r_k"], config.n_head, config.head_dim, keep=0)
    now_TN1 = g.sum_rows(g.mul(g.mul(k_TNH, r_TNH), ours_NH), "now")
    y_TD = g.add(y_TD, g.flatten(g.mul(v_TNH, now_TN1)))
    if layer.get("time_mix_g1"):
        gate_TD = layer.linear(g.sigmoid(layer.linear(mixed["g"], "time_mix_g1")), "time_mix_g2")
        y_TD = g.mul(y_TD, gate_TD, "gated")
    return layer.linear(y_TD, "time_mix_output", "time_mix")


def _mixed(g: Builder, layer: Layer, x_TD: Node, ahead_TD: Node) -> dict[str, Node]:
    """The token and a share of the one before it, for r, w, k, v, a and, if there is a gate, g."""
    kinds, width = "rwkvag" if layer.get("time_mix_g1") else "rwkva", fixed(x_TD.shape[1])
    why = f", with blk.{layer.index}.time_mix_g1.weight six rows, else five"
    shares = row(g, layer, "time_mix_lerp_fused", len(kinds) * width, why)
    return {
        what: g.add(x_TD, g.mul(ahead_TD, g.columns(shares, i * width, (i + 1) * width)), f"{what}_mixed")
        for i, what in enumerate(kinds)
    }


def _narrow(g: Builder, layer: Layer, x_TD: Node, what: str, bent: bool = False) -> Node:
    """By way of a narrow value, bent by tanh or not, back to [T, D], plus a bias."""
    narrow = layer.linear(x_TD, f"time_mix_{what}1")
    wide_TD = layer.linear(g.tanh(narrow) if bent else narrow, f"time_mix_{what}2")
    return g.add(wide_TD, layer[f"time_mix_{what}0"])


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    return rwkv6.build(g, config, weights, partial(time_mix, first=[]), squared_ffn)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, with a gate and without."""
    narrow: Shapes = {}
    for what in "wav":
        narrow |= {f"time_mix_{what}0.weight": (64,), f"time_mix_{what}1.weight": (6, 64),
                   f"time_mix_{what}2.weight": (64, 6)}  # fmt: skip
    layer: Shapes = {
        **narrow,
        **{f"time_mix_{factor_name}.weight": (64,) for factor_name in ("k_k", "k_a", "r_k")},
    }
    gate: Shapes = {"time_mix_g1.weight": (6, 64), "time_mix_g2.weight": (64, 6)}
    ranks = ("decay", "iclr", "value_residual_mix", "gate")
    keys = {f"attention.{rank}_lora_rank": 6 for rank in ranks}
    gone = tuple(f"blk.0.time_mix_v{i}.weight" for i in range(3))  # the first layer mixes with none
    return [
        tiny(name, "plain", {**layer, **gate, "time_mix_lerp_fused.weight": (6, 1, 1, 64)}, keys, gone),
        tiny(name, "ungated", {**layer, "time_mix_lerp_fused.weight": (5, 1, 1, 64)}, keys, gone),
    ]
