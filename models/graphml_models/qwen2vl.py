"""Qwen2-VL (Wang et al. 2024, arXiv:2409.12191), its language model on text alone: qwen2.

Positions of text are the same on all axes of a picture, so the rope in sections is the plain one.
"""

from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _windows, qwen2
from graphml_models._rope import read_sections
from graphml_models._samples import SECTIONS, transformer


class Config(_windows.FolderConfig):
    """That of most decoders; the sections of the rope are read, and checked."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        read_sections(keys)
        return super().read(keys)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; a bias of theirs is left out, as in llama.cpp."""
    return qwen2.build(g, config, weights.without("output.bias"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, biases=("attn_q", "attn_k", "attn_v"), metadata=SECTIONS)]
