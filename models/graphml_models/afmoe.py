"""Trinity (Arcee AI 2025, "Arcee Trinity"): DeepSeek-V3's experts, a gate on attention's output, windows.

Norms before and behind the blocks. T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _routing, _windows, gemma, llama
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, POST_NORMS, shared_expert, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, tables_by_layer

NO_ROPE = 4  # every so many layers there is one without positions


@dataclass(frozen=True)
class Config(_routing.Config, _windows.Config):
    """As of decoders with windows and experts."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=4, size=0)
        local = read_local_rope(keys, known.rope)
        return cls(**vars(known), routing=Routing.read(keys, SIGMOID), windows=windows, local_rope=local)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, gated, before its output projection, [T, N * H]."""
    rope = table if (layer.index + 1) % NO_ROPE else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "neox", norm_heads)
    y_TD = g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])
    return g.mul(y_TD, g.sigmoid(layer.linear(x_TD, "attn_gate", "attn_gate", scaled=False)), "gated")


build = partial(
    llama.build,
    attention=attention,
    feed_forward=shared_and_chosen,
    tables=tables_by_layer,
    embed=gemma.embedded,
    norms="both",
)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    layer = {
        **shared_expert(),
        **HEAD_NORMS,
        **POST_NORMS,
        "exp_probs_b.bias": (5,),
        "attn_gate.weight": (64, 64),
    }
    keys = {
        "expert_weights_norm": True,
        "expert_weights_scale": 2.8,
        "attention.sliding_window": 20,
        PATTERN: 4,
    }
    return [transformer(name, n_expert=5, n_layer=4, layer=layer, metadata=keys, **DENSE_FIRST)]
