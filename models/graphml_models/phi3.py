"""Phi-3 (Abdin et al. 2024, arXiv:2404.14219): llama with gate and up in one matrix and LongRoPE.

The sliding window that files of Phi-3 mini name is not applied, as in llama.cpp.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._ffn import halved_ffn
from graphml_models._samples import Metadata, transformer


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU."""
    return halved_ffn(g, layer, x_TD)


build = partial(llama.build, attention=partial(llama.attention, mode="neox"), feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: a context as long as first trained for, and a longer one."""
    both = {"ffn_up.weight": (192, 64), "attn_qkv.weight": (128, 64)}
    split = ("ffn_gate.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    factors = {"rope_factors_short.weight": (8,), "rope_factors_long.weight": (8,)}
    shared = partial(transformer, name, layer=both, top=factors, without=split)
    keys: Metadata = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19}
    return [shared("short"), shared("long", metadata={**keys, "rope.scaling.original_context_length": 32})]
