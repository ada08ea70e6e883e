"""PLaMo 3 (Preferred Networks 2025, "PLaMo 3"): windows, norms on heads and on both sides of the blocks.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _windows, llama
from graphml_models._attention import norm_heads
from graphml_models._ffn import halved_ffn
from graphml_models._samples import HEAD_NORMS, POST_NORMS, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, tables_by_layer


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=8, size=0)
        return cls(
            **vars(known), windows=windows, local_rope=read_local_rope(keys, known.rope, 10000.0, False)
        )


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, gate and up in one matrix."""
    return halved_ffn(g, layer, x_TD)


attention = partial(_windows.attention, norm=norm_heads)
build = partial(
    llama.build, attention=attention, feed_forward=feed_forward, tables=tables_by_layer, norms="both"
)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    layer = {**HEAD_NORMS, **POST_NORMS, "attn_qkv.weight": (128, 64), "ffn_up.weight": (192, 64)}
    without = ("ffn_gate.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    keys = {"attention.sliding_window": 20, PATTERN: 2, "rope.freq_base_swa": 500.0}
    return [transformer(name, layer=layer, without=without, metadata=keys)]
