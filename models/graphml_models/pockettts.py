"""Pocket TTS (Kyutai 2026, "Pocket TTS"), its language model on text: GPT-2's layers with rotated heads.

What makes sound of its outputs is no part of it; its logits are those of its embedding. Letters as in
`_layer_norm`.
"""

from __future__ import annotations

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import _layer_norm, llama
from graphml_models._layer_norm import Config as Config
from graphml_models._samples import layer_norm_transformer

build = partial(_layer_norm.build, attention=llama.attention)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests, its norms alone with biases."""
    norms = ("attn_norm", "ffn_norm")
    return [
        layer_norm_transformer(
            name,
            n_head_kv=2,
            fused=False,
            biases=False,
            tied=True,
            layer={f"{norm}.bias": (64,) for norm in norms},
            top={"output_norm.bias": (64,)},
        )
    ]
