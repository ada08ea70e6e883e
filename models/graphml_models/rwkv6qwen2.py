"""QRWKV6 (Goldstein et al. 2025, arXiv:2505.03005): Qwen2 with RWKV-6's memory in the place of attention.

Keys and values may have fewer heads than queries; keys are weaker where the memory keeps much (gated linear
attention: Yang et al. 2023, arXiv:2312.06635). T tokens, D model width, N heads, K of keys and values, H
head width.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama, rwkv6
from graphml_models._layer_norm import no_tables
from graphml_models._samples import Metadata, Shapes, transformer
from graphml_models.rwkv6 import HEAD, ahead, decays, five


class Config(_config.Config):
    """As of every decoder."""

    @classmethod
    def read(cls, keys: Keys) -> Config:
        """From the file's metadata."""
        return cls(**vars(rwkv6.read(keys, _config.RMS_EPS, shifts=1)))


def attention(g: Builder, config: _config.Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """What the memory gives, gated, before its output projection, [T, N * H]."""
    mixed = five(g, layer, x_TD, ahead(g, layer, x_TD, "time_shift"))
    r_TNH = g.heads(layer.linear(mixed["r"], "time_mix_receptance", "receptance"), config.n_head)
    k_TNH, v_TNH = (
        for_all_heads(g, config, layer.linear(mixed[name[0]], f"time_mix_{name}", name))
        for name in ("key", "value")
    )
    decay_TNH = decays(g, config, layer, mixed["w"])
    k_TNH = g.sub(k_TNH, g.mul(k_TNH, decay_TNH), "k_written")
    scale = config.head_dim**-0.5
    y_TNH = g.linear_attention(r_TNH, k_TNH, v_TNH, layer.index, (decay_TNH,), scale=scale)
    return g.mul(g.flatten(y_TNH), g.sigmoid(layer.linear(mixed["g"], "time_mix_gate")), "gated")


def for_all_heads(g: Builder, config: _config.Config, x_TE: Node) -> Node:
    """Each of K heads in the place of all queries that share it, [T, N, H]."""
    n, n_kv, width = config.n_head, config.n_head_kv, config.head_dim
    if n == n_kv:
        return g.heads(x_TE, n)
    x_TGE = g.repeat(g.heads(x_TE, 1), n // n_kv)
    return g.reshape(g.permute(g.reshape(x_TGE, n // n_kv, n_kv, width), 0, 2, 1, 3), n, width)


def rms_norm(g: Builder, config: _config.Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """As of llama, with a bias where the file has one."""
    normed, bias = llama.rms_norm(g, config, tensors, x, tensor, name), tensors.get(f"{tensor}.bias")
    return normed if bias is None else g.add(normed, bias)


def project(layer: Layer, h: Node) -> Node:
    """Output projection, [T, D]."""
    return layer.linear(h, "time_mix_output", "time_mix")


build = partial(llama.build, attention=attention, project=project, tables=no_tables, norm=rms_norm)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: fewer heads of keys and values, with biases, and as many without."""
    layer: Shapes = {
        "time_mix_w1.weight": (20, 64), "time_mix_w2.weight": (5, 64, 4),
        "time_mix_lerp_x.weight": (1, 1, 64), "time_mix_lerp_fused.weight": (5, 1, 1, 64),
        "time_mix_decay.weight": (64,), "time_mix_decay_w1.weight": (6, 64),
        "time_mix_decay_w2.weight": (64, 6),
        **{f"time_mix_{matrix}.weight": (64, 64) for matrix in ("receptance", "gate", "output")},
    }  # fmt: skip
    grouped: Shapes = {
        "time_mix_key.bias": (32,),
        "time_mix_value.bias": (32,),
        "time_mix_receptance.bias": (64,),
    }
    return [
        tiny(name, "grouped", {**layer, **keys_and_values(32), **grouped}, {"output_norm.bias": (64,)}),
        tiny(name, "plain", {**layer, **keys_and_values(64)}, n_head_kv=4),
    ]


def keys_and_values(width: int) -> Shapes:
    """Their matrices."""
    return {f"time_mix_{matrix}.weight": (width, 64) for matrix in ("key", "value")}


def tiny(
    name: str, kind: str, layer: Shapes, top: Shapes | None = None, n_head_kv: int = 2,
    gone: tuple[str, ...] = (),
) -> SampleModel:  # fmt: skip
    """A tiny Qwen2 for tests with these tensors for attention's, but those that are gone."""
    gone += ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight")
    metadata: Metadata = {HEAD: 16, "attention.head_count": 0, "token_shift_count": 1}
    return transformer(name, kind, n_head_kv, layer=layer, top=top, metadata=metadata, without=gone)
