"""RWKV-6 (Peng et al. 2024, arXiv:2404.05892): linear attention that each channel forgets at its own pace.

No positions and no cache: a layer knows the token before by a shift, and all others by its memory. T tokens,
D model width, N heads, H head width, R a narrow width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed, max_elements
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models._config import LAYER_EPS, Heads
from graphml_models._ffn import relu_squared
from graphml_models._samples import Shapes, transformer

HEAD = "wkv.head_size"
TimeMix = Callable[[Builder, "Config", Layer, Node, Node], Node]
ChannelMix = Callable[[Builder, Layer, Node, Node], Node]


@dataclass(frozen=True)
class Config(_config.Config):
    """And after how many layers the residual is halved (0: never), so that half precision holds it."""

    rescale_every_n_layers: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = read(keys, LAYER_EPS, shifts=2)
        return cls(**vars(known), rescale_every_n_layers=keys.integer("rescale_every_n_layers", 0))


def read(keys: Keys, eps: str, shifts: int) -> _config.Config:
    """What all of them have; eps: the key of their norms; shifts: of a layer's blocks, by one token."""
    width, head = keys.integer("embedding_length"), keys.integer(HEAD)
    if head < 1 or width % head:
        raise keys.unsupported(HEAD, f"a number that divides the width {width}")
    if keys.integer("token_shift_count", 2) != shifts:
        raise keys.unsupported("token_shift_count", str(shifts))
    n_head = width // head
    n_head_kv = keys.integer("attention.head_count_kv", 0) or n_head
    if n_head_kv < 1 or n_head % n_head_kv:
        raise keys.unsupported("attention.head_count_kv", f"0 or a number that divides the {n_head} heads")
    return replace(_config.read(keys, eps=eps, heads=Heads(n_head, n_head_kv)), head_dim=head)


def time_mix(g: Builder, config: Config, layer: Layer, x_TD: Node, ahead_TD: Node) -> Node:
    """What the memory gives, [T, D]; ahead: by how much the token before differs."""
    mixed = five(g, layer, x_TD, ahead_TD)
    r_TNH, k_TNH, v_TNH = (
        g.heads(layer.linear(mixed[what], f"time_mix_{name}", name), config.n_head)
        for what, name in (("r", "receptance"), ("k", "key"), ("v", "value"))
    )
    decay_TNH = decays(g, config, layer, mixed["w"])
    y_TNH = g.linear_attention(r_TNH, k_TNH, v_TNH, layer.index, (decay_TNH,), before=True)
    now_TN1 = g.sum_rows(g.mul(g.mul(r_TNH, k_TNH), g.dequantize(layer["time_mix_first"])), "now")
    y_TD = normed_heads(g, layer, g.add(y_TNH, g.mul(v_TNH, now_TN1)))
    gate_TD = g.silu(layer.linear(mixed["g"], "time_mix_gate"))
    return layer.linear(g.mul(y_TD, gate_TD, "gated"), "time_mix_output", "time_mix")


def decays(g: Builder, config: _config.Config, layer: Layer, x_TD: Node) -> Node:
    """What each channel keeps of the memory, between 0 and 1, [T, N, H]."""
    narrow = g.tanh(layer.linear(x_TD, "time_mix_decay_w1"))
    rate_TD = g.add(layer.linear(narrow, "time_mix_decay_w2"), layer["time_mix_decay"])
    return g.heads(g.exp(g.scale(g.exp(rate_TD), -1.0), "decay"), config.n_head)


def five(g: Builder, layer: Layer, x_TD: Node, ahead_TD: Node) -> dict[str, Node]:
    """The token and the one before it, mixed for w, k, v, r and g in shares that they decide themselves."""
    base_TD = g.add(x_TD, g.mul(ahead_TD, row(g, layer, "time_mix_lerp_x")))
    narrow_T5R = g.heads(g.tanh(layer.linear(base_TD, "time_mix_w1")), 5)
    widen, width, mixed = layer["time_mix_w2"], fixed(x_TD.shape[1]), {}
    if widen.shape[1:2] != (width,):
        raise ArchitectureError(f"tensor {widen.name}: wanted five of {width} rows; got {widen.type}")
    shares = g.flatten(g.per_head(widen, narrow_T5R, "shares"))
    fused = row(g, layer, "time_mix_lerp_fused", 5 * width) if layer.get("time_mix_lerp_fused") else None
    for i, what in enumerate("wkvrg"):
        if fused is None:
            share_D = row(g, layer, f"time_mix_lerp_{what}")
        else:
            share_D = g.columns(fused, i * width, (i + 1) * width)
        share_TD = g.add(g.columns(shares, i * width, (i + 1) * width), share_D)
        mixed[what] = g.add(x_TD, g.mul(ahead_TD, share_TD), f"{what}_mixed")
    return mixed


def normed_heads(g: Builder, layer: Layer, y_TNH: Node) -> Node:
    """A layer norm of each head, its weight and bias those of all heads, [T, D]."""
    y_TD = g.flatten(g.layer_norm(y_TNH, None, None, 64e-5))
    return g.add(g.mul(y_TD, layer["time_mix_ln"]), layer["time_mix_ln.bias"], "heads_norm")


def channel_mix(g: Builder, layer: Layer, x_TD: Node, ahead_TD: Node) -> Node:
    """A feed-forward that reads the token before too, and is let through by a gate, [T, D]."""
    gate_TD = g.sigmoid(layer.linear(mixed_with(g, layer, x_TD, ahead_TD, "r"), "channel_mix_receptance"))
    return g.mul(gate_TD, squared_ffn(g, layer, x_TD, ahead_TD), "channel_mix")


def squared_ffn(g: Builder, layer: Layer, x_TD: Node, ahead_TD: Node) -> Node:
    """value(relu(key(x))^2), [T, D]."""
    h_TF = relu_squared(g, layer.linear(mixed_with(g, layer, x_TD, ahead_TD, "k"), "channel_mix_key"))
    return layer.linear(h_TF, "channel_mix_value")


def mixed_with(g: Builder, layer: Layer, x_TD: Node, ahead_TD: Node, what: str) -> Node:
    """The token and a share of the one before it."""
    return g.add(x_TD, g.mul(ahead_TD, row(g, layer, f"channel_mix_lerp_{what}")), f"{what}_mixed")


def row(g: Builder, layer: Tensors, name: str, wanted: int = 0, why: str = "") -> Node:
    """A tensor that files write with dimensions of 1, as one row; wanted: its elements, if known, and why."""
    weight = layer[name]
    if wanted and max_elements(weight.shape) != wanted:
        raise ArchitectureError(f"tensor {weight.name}: wanted {wanted} elements{why}; got {weight.type}")
    if len(weight.shape) == 1:
        return weight
    return g.reshape(g.dequantize(weight), max_elements(weight.shape), keep=0)


def ahead(g: Builder, layer: Layer, x_TD: Node, what: str) -> Node:
    """The token before minus the token, zeros before the first; what: names the state."""
    width = fixed(x_TD.shape[1])
    like_D = layer["attn_norm"]
    ones, zeros = (g.reshape(g.scale(like_D, 0.0, fill), width, 1, keep=0) for fill in (1.0, 0.0))
    return g.sub(g.ssm_conv(x_TD, g.concat(ones, zeros), None, layer.index, what), x_TD, what)


def build(
    g: Builder,
    config: Config,
    weights: Tensors,
    time_mix: TimeMix = time_mix,
    channel_mix: ChannelMix = channel_mix,
) -> Node:
    """Logits [O, vocabulary]."""

    def norm(tensors: Tensors, x: Node, name: str) -> Node:
        return g.layer_norm(x, tensors[name], tensors[f"{name}.bias"], config.norm_eps, name)

    x_TD = norm(weights, g.embed(weights["token_embd"], g.tokens), "token_embd_norm")
    for layer in weights.layers(config.n_layer):
        h_TD = norm(layer, x_TD, "attn_norm")
        h_TD = time_mix(g, config, layer, h_TD, ahead(g, layer, h_TD, "time_shift"))
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = norm(layer, x_TD, "attn_norm_2")
        ahead_TD = ahead(g, layer, h_TD, "channel_shift")
        x_TD = g.add(x_TD, channel_mix(g, layer, h_TD, ahead_TD), "ffn_residual")
        if config.rescale_every_n_layers and (layer.index + 1) % config.rescale_every_n_layers == 0:
            x_TD = g.scale(x_TD, 0.5, name="halved")
    return weights.logits(norm(weights, x_TD, "output_norm"))


def tiny(
    name: str, kind: str, layer: Shapes, keys: dict[str, int], gone: tuple[str, ...] = ()
) -> SampleModel:
    """A tiny model for tests: 4 heads, 16 wide, with these tensors in each layer, but those that are gone."""
    top: Shapes = {f"{norm}.bias": (64,) for norm in ("output_norm", "token_embd_norm")}
    norms: Shapes = {
        f"{norm}.{part}": (64,) for norm in ("attn_norm", "attn_norm_2") for part in ("weight", "bias")
    }
    mixes: Shapes = {
        **{f"time_mix_{matrix}.weight": (64, 64) for matrix in ("receptance", "key", "value", "output")},
        "time_mix_ln.weight": (64,), "time_mix_ln.bias": (64,), "channel_mix_lerp_k.weight": (1, 1, 64),
        "channel_mix_key.weight": (96, 64), "channel_mix_value.weight": (64, 96),
    }  # fmt: skip
    gone += tuple(f".{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm",
                                                "ffn_gate", "ffn_up", "ffn_down"))  # fmt: skip
    return transformer(
        name, kind, layer={**norms, **mixes, **layer}, top={"token_embd_norm.weight": (64,), **top},
        metadata={HEAD: 16, "attention.head_count": 0, **keys}, without=gone, layer_norm=True,
    )  # fmt: skip


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, one of them as older files were."""
    layer: Shapes = {
        "time_mix_w1.weight": (20, 64), "time_mix_w2.weight": (5, 64, 4),
        "time_mix_lerp_x.weight": (1, 1, 64),
        "time_mix_first.weight": (4, 16), "time_mix_decay.weight": (64,), "time_mix_decay_w1.weight": (6, 64),
        "time_mix_decay_w2.weight": (64, 6), "time_mix_gate.weight": (64, 64),
        "channel_mix_lerp_r.weight": (1, 1, 64), "channel_mix_receptance.weight": (64, 64),
    }  # fmt: skip
    older: Shapes = {f"time_mix_lerp_{what}.weight": (1, 1, 64) for what in "wkvrg"}
    keys = {"time_mix_extra_dim": 4, "time_decay_extra_dim": 6}
    return [
        tiny(name, "plain", {**layer, "time_mix_lerp_fused.weight": (5, 1, 1, 64)}, keys),
        tiny(name, "older", {**layer, **older}, {**keys, "rescale_every_n_layers": 1}),
    ]
