"""K-EXAONE (LG AI Research 2026, arXiv:2601.01739): DeepSeek-V3's experts behind windows.

Only layers with a window have positions. T tokens, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _routing, llama
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._routing import Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, shared_expert, transformer
from graphml_models._windows import PATTERN, WindowConfig, read_local_rope, read_windows


@dataclass(frozen=True)
class Config(_routing.Config, WindowConfig):
    """And windows of the layers; rope is that of layers with one."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        known = replace(known, rope=read_local_rope(keys, known.rope))
        windows = read_windows(keys, known.n_layer, period=4)
        return cls(**vars(known), routing=Routing.read(keys), windows=windows)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, [T, N * H]."""
    window = config.windows[layer.index]
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table if window else None, x_TD, "neox", norm_heads)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window)


build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    layer = {**shared_expert(), **HEAD_NORMS, "exp_probs_b.bias": (5,)}
    keys = {"expert_gating_func": 2, "expert_weights_norm": True, "attention.sliding_window": 20, PATTERN: 2}
    return [transformer(name, n_expert=5, layer=layer, metadata=keys, **DENSE_FIRST)]
