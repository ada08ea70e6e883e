"""Mamba (Gu and Dao 2023, arXiv:2312.00752) and FalconMamba: state-space layers alone, without attention.

T tokens, O output rows, D model width, I inner width, S state size, R width that dt is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _ssm_samples as samples
from graphml_models._config import MAX_LAYERS, RMS_EPS
from graphml_models._ssm import Ssm, convolved


@dataclass(frozen=True)
class Config:
    """Sizes and epsilon of the norms; norms: whether B, C and dt are normed even without weights.

    inner_eps: epsilon of these norms.
    """

    n_ctx: int
    n_vocab: int
    n_embd: int
    n_layer: int
    norm_eps: float
    ssm: Ssm
    norms: bool
    inner_eps: float

    @classmethod
    def read(cls, keys: Keys, groups: bool = False) -> Self:
        """From the file's metadata; groups: as of `Ssm.read`."""
        n_layer = keys.integer("block_count")
        if not 1 <= n_layer <= MAX_LAYERS:
            raise keys.unsupported("block_count", f"1 to {MAX_LAYERS} layers")
        norm_eps = keys.number(RMS_EPS)
        return cls(
            n_ctx=keys.integer("context_length"),
            n_vocab=keys.n_vocab(),
            n_embd=keys.integer("embedding_length"),
            n_layer=n_layer,
            norm_eps=norm_eps,
            ssm=Ssm.read(keys, groups),
            norms=keys.boolean("ssm.dt_b_c_rms", False),
            inner_eps=keys.number("ssm.dt_b_c_rms_epsilon", norm_eps),
        )


def mamba(
    g: Builder, ssm: Ssm, layer: Layer, x_TD: Node, norm_eps: float, norms: bool, weighted: bool = False
) -> Node:
    """Mamba before its output projection, [T, I]; norms: of B, C and dt; weighted: with weights."""
    inner, rank, d_state = ssm.d_inner, ssm.dt_rank, ssm.d_state
    xz = layer.linear(x_TD, "ssm_in", "ssm_in", rows=2 * inner)
    x_TI, z_TI = g.columns(xz, 0, inner), g.columns(xz, inner, 2 * inner, "z")
    x_TI = convolved(ssm, layer, x_TI)
    dtbc = layer.linear(x_TI, "ssm_x", "dt_b_c", rows=rank + 2 * d_state)
    starts = {"dt": 0, "b": rank, "c": rank + d_state, "": rank + 2 * d_state}
    parts = {}
    for (name, start), end in zip(list(starts.items())[:-1], list(starts.values())[1:], strict=True):
        part, weight = g.columns(dtbc, start, end), layer[f"ssm_{name}_norm"] if weighted else None
        parts[name] = g.rms_norm(part, weight, norm_eps, f"{name}_norm") if norms else part
    dt_TI = layer.linear(parts["dt"], "ssm_dt", "dt", rows=inner)
    a_IS, d_I = layer["ssm_a"], layer["ssm_d"]
    y_TI = g.ssm_scan(x_TI, dt_TI, a_IS, parts["b"], parts["c"], d_I, layer.index, d_state, name="scan")
    return g.mul(g.silu(z_TI), y_TI, "gated")


def mixer(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """The layer before its output projection, [T, I]."""
    return mamba(g, config.ssm, layer, x_TD, config.inner_eps, config.norms)


def build(
    g: Builder,
    config: Config,
    weights: Tensors,
    mixer: Callable[[Builder, Config, Layer, Node], Node] = mixer,
) -> Node:
    """Logits [O, vocabulary]; mixer: what a layer consists of."""
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TI = mixer(g, config, layer, g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "norm"))
        x_TD = g.add(x_TD, layer.linear(h_TI, "ssm_out", "mixed"), "residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: Mamba, and FalconMamba with its norms."""
    keys = samples.sizes()
    return [
        samples.alone(name, "plain", samples.mamba(), keys),
        samples.alone(name, "norms", samples.mamba(), {**keys, "ssm.dt_b_c_rms": True}, tied=True),
    ]
