"""Laguna (Poolside 2026): DeepSeek-V3's experts, windows with a rope of their own, gated attention.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _routing, _windows, llama
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._config import Heads, with_heads
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, Metadata, shared_expert, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, tables_by_layer


@dataclass(frozen=True)
class Config(_routing.Config, _windows.Config):
    """And heads, windows and ropes by layer."""

    heads: tuple[Heads, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads = _config.read_heads(keys)
        known = _config.read(keys, heads=heads[-1])
        local = read_local_rope(keys, known.rope, scaled=False)
        return cls(
            **vars(known),
            routing=Routing.read(keys, SIGMOID),
            heads=heads,
            windows=read_windows(keys, known.n_layer, period=4, all_first=True, size=0),
            local_rope=replace(local, n_rot=keys.integer("rope.dimension_count_swa", local.n_rot)),
        )


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, gated, before its output projection, [T, N * H]."""
    config = with_heads(config, config.heads[layer.index])
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox", norm_heads)
    y_TD = g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])
    gate = g.softplus(layer.linear(x_TD, "attn_gate", scaled=False), "attn_gate")
    if gate.shape[1] == y_TD.shape[1]:
        return g.mul(y_TD, gate, "gated")
    if gate.shape[1] != config.n_head:
        raise ArchitectureError(
            f"tensor blk.{layer.index}.attn_gate.weight: wanted a row for each head or for each element of "
            f"all heads, {config.n_head} or {y_TD.shape[1]}; got {gate.shape[1]}"
        )
    return g.flatten(g.mul(g.heads(y_TD, config.n_head), g.reshape(gate, fixed(gate.shape[1]), 1)), "gated")


build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen, tables=tables_by_layer)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: a gate for each head, with windows; a gate for each element, without."""
    layer = {**shared_expert(), **HEAD_NORMS, "exp_probs_b.bias": (5,)}
    routing = {"expert_weights_norm": True, "expert_weights_scale": 2.5}
    windows: Metadata = {
        **routing, "attention.sliding_window": 20, PATTERN: [0, 1], "rope.freq_base_swa": 500.0,
        "rope.dimension_count": 8, "rope.dimension_count_swa": 16, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0, "attention.head_count": [2, 4], "attention.head_count_kv": [2, 2],
        "attention.key_length": 16,
    }  # fmt: skip
    few = {"attn_q.weight": (32, 64), "attn_output.weight": (64, 32), "attn_gate.weight": (2, 64)}
    top = {**DENSE_FIRST["top"], **{f"blk.0.{part}": shape for part, shape in few.items()}}
    model, without = partial(transformer, name, n_expert=5), DENSE_FIRST["without"]
    return [
        model(
            "heads", layer={**layer, "attn_gate.weight": (4, 64)}, metadata=windows, top=top, without=without
        ),
        model("elements", layer={**layer, "attn_gate.weight": (64, 64)}, metadata=routing, **DENSE_FIRST),
    ]
