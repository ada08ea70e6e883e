"""State-space layers (Mamba 2: Dao and Gu 2024, arXiv:2405.21060), and models that mix them with attention.

T tokens, D model width, I inner width, S state size, G groups of B and C, N heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer
from graphml_models import _config
from graphml_models._config import Heads, with_heads

LARGEST = 1 << 20


@dataclass(frozen=True)
class Ssm:
    """Sizes: of the convolution, I, S; heads of Mamba 2, or the width that Mamba makes dt of; G.

    dt_min: the least that dt of Mamba 2 is, 0 for none; GGUF files say none.
    """

    d_conv: int
    d_inner: int
    d_state: int
    dt_rank: int
    n_group: int
    dt_min: float = 0.0

    @classmethod
    def read(cls, keys: Keys, groups: bool = True) -> Self:
        """From the file's metadata; groups: whether the architecture has any."""
        ssm = cls(
            d_conv=keys.integer("ssm.conv_kernel"),
            d_inner=keys.integer("ssm.inner_size"),
            d_state=keys.integer("ssm.state_size"),
            dt_rank=keys.integer("ssm.time_step_rank"),
            n_group=keys.integer("ssm.group_count") if groups else 1,
            dt_min=keys.number("ssm.time_step_min", 0.0),
        )
        sizes = {"conv_kernel": ssm.d_conv, "inner_size": ssm.d_inner, "state_size": ssm.d_state,
                 "time_step_rank": ssm.dt_rank, "group_count": ssm.n_group}  # fmt: skip
        for key, size in sizes.items():
            if not 1 <= size <= LARGEST:
                raise keys.unsupported(f"ssm.{key}", f"1 to {LARGEST}")
        if groups and (ssm.d_inner % ssm.dt_rank or ssm.dt_rank % ssm.n_group):
            raise keys.unsupported(
                "ssm.time_step_rank", f"heads that divide {ssm.d_inner} and fill {ssm.n_group} groups"
            )
        return ssm


@dataclass(frozen=True)
class Hybrid(_config.Config):
    """As of every decoder, and of state-space layers; heads: by layer.

    A layer without heads of keys is no layer of attention.
    """

    ssm: Ssm
    heads: tuple[Heads, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(**vars(read_hybrid(keys)))

    def of(self, layer: Layer) -> Self | None:
        """The configuration of the attention of a layer; None where it has no attention."""
        heads = self.heads[layer.index]
        return with_heads(self, heads) if heads.n_head_kv else None


def read_hybrid(
    keys: Keys, eps: str = _config.RMS_EPS, groups: bool = True, n_used: int | None = None
) -> Hybrid:
    """What every hybrid has; eps: the key of the norms' epsilon; groups: of `Ssm.read`; n_used: of `read`."""
    n_layer = keys.integer("block_count")
    counts = [keys.integers(f"attention.head_count{kind}", n_layer) for kind in ("", "_kv")]
    most = Heads(max(counts[0], default=0), max(counts[1], default=0))
    known = _config.read(keys, eps=eps, heads=most, n_used=n_used)
    return Hybrid(**vars(known), ssm=Ssm.read(keys, groups), heads=tuple(map(Heads, *counts)))


def convolved(ssm: Ssm, layer: Layer, x: Node) -> Node:
    """The layer's convolution of x [T, channels] and SiLU."""
    g, weight = layer.g, layer["ssm_conv1d"]
    if weight.shape[-1] != ssm.d_conv:
        raise ArchitectureError(
            f"tensor {weight.name}: wanted {ssm.d_conv} weights for each channel, as long as ssm.conv_kernel "
            f"says; got {weight.type}"
        )
    y = g.ssm_conv(x, weight, layer.get("ssm_conv1d.bias"), layer.index, name="conv")
    return g.silu(y, "conv_silu")


def mamba2(g: Builder, ssm: Ssm, layer: Layer, x_TD: Node, norm_eps: float, normed: bool = True) -> Node:
    """Mamba 2 before its output projection, [T, I]: one product for all, convolution, scan, gate, norm.

    normed: whether the last must be there.
    """
    inner, shared = ssm.d_inner, ssm.n_group * ssm.d_state
    joined = layer.linear(x_TD, "ssm_in", "ssm_in", rows=2 * inner + 2 * shared + ssm.dt_rank)
    z_TI, xbc = g.columns(joined, 0, inner, "z"), g.columns(joined, inner, 2 * inner + 2 * shared, "xbc")
    dt_TN = g.columns(joined, 2 * inner + 2 * shared, 2 * inner + 2 * shared + ssm.dt_rank)
    xbc = convolved(ssm, layer, xbc)
    x_TI, b_TGS = g.columns(xbc, 0, inner, "x"), g.columns(xbc, inner, inner + shared, "b")
    c_TGS = g.columns(xbc, inner + shared, inner + 2 * shared, "c")
    dt_TN = g.add(dt_TN, layer["ssm_dt.bias"], "dt")
    if ssm.dt_min > 0:  # the scan takes its softplus, whose inverse this is
        dt_TN = g.clamp(dt_TN, ssm.dt_min + log(-expm1(-ssm.dt_min)), float("inf"))
    a_N, d_N = layer["ssm_a"], layer["ssm_d"]
    y_TI = g.ssm_scan(x_TI, dt_TN, a_N, b_TGS, c_TGS, d_N, layer.index, ssm.d_state, name="scan")
    y_TI = g.mul(g.silu(z_TI), y_TI, "gated")
    weight = layer["ssm_norm"] if normed else layer.get("ssm_norm")
    if weight is None:
        return y_TI
    if ssm.n_group == 1:
        return g.rms_norm(y_TI, g.reshape(weight, inner, keep=0), norm_eps, "ssm_norm")
    groups = g.reshape(y_TI, ssm.n_group, inner // ssm.n_group)
    return g.flatten(g.rms_norm(groups, weight, norm_eps, "ssm_norm"))


def mixed_out(layer: Layer, h: Node) -> Node:
    """The output projection of a layer of one kind or of the other, [T, D]."""
    return layer.linear(h, "ssm_out" if layer.get("ssm_out") else "attn_output", "mixed")
