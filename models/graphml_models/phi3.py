"""Phi-3 (Abdin et al. 2024, arXiv:2404.14219): llama with gate and up in one matrix and LongRoPE.

The sliding window that GGUF files of Phi-3 mini name is not applied, as in llama.cpp; that of folders of
transformers is, whose metadata say which layers have it.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _windows, llama
from graphml_models._ffn import halved_ffn
from graphml_models._samples import Metadata, transformer
from graphml_models._windows import PATTERN, WindowConfig, read_windows


class Config(WindowConfig):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=0) if keys.has(PATTERN) else (0,) * known.n_layer
        return cls(**vars(known), windows=windows)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU."""
    return halved_ffn(g, layer, x_TD)


build = partial(llama.build, attention=_windows.attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: a context as long as first trained for, and a longer one."""
    both = {"ffn_up.weight": (192, 64), "attn_qkv.weight": (128, 64)}
    split = ("ffn_gate.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    factors = {"rope_factors_short.weight": (8,), "rope_factors_long.weight": (8,)}
    shared = partial(transformer, name, layer=both, top=factors, without=split)
    keys: Metadata = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19}
    window: Metadata = {"attention.sliding_window": 40, "attention.sliding_window_pattern": 0}
    return [
        shared("short"),
        shared("window", metadata=window),
        shared("long", metadata={**keys, "rope.scaling.original_context_length": 32}),
    ]
