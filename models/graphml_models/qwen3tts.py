"""Qwen3-TTS (Qwen Team 2026, "Qwen3-TTS"), its language model on text: qwen3vl that says codes of sound.

There are fewer codes than ids of text: they are the last ids, and no others are ever the answer. O output
rows, D model width.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import qwen3vl
from graphml_models._samples import HEAD_NORMS, SECTIONS, transformer
from graphml_models.qwen2vl import Config as Config


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    logits = qwen3vl.build(g, config, weights)
    n_text = fixed(weights["token_embd"].shape[0]) - fixed(logits.shape[1])
    if n_text <= 0:
        return logits
    never_O = g.scale(g.columns(logits, 0, 1), 0.0, float("-inf"))
    return g.concat(g.flatten(g.repeat(g.heads(never_O, 1), n_text)), logits, "codes")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with as many codes as ids."""
    return [transformer(name, layer=HEAD_NORMS, tied=True, metadata=SECTIONS)]
