"""Mamba 2 (Dao and Gu 2024, arXiv:2405.21060): Mamba with one decay for a head, B and C in groups."""

from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _ssm_samples as samples
from graphml_models import mamba
from graphml_models._ssm import mamba2


class Config(mamba.Config):
    """As Mamba's, with groups."""

    @classmethod
    def read(cls, keys: Keys, groups: bool = True) -> Self:
        """From the file's metadata."""
        return super().read(keys, groups)


def mixer(g: Builder, config: mamba.Config, layer: Layer, x_TD: Node) -> Node:
    """The layer before its output projection."""
    return mamba2(g, config.ssm, layer, x_TD, config.norm_eps)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    return mamba.build(g, config, weights, mixer)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [
        samples.alone(name, "groups", samples.mamba2(), samples.sizes(n_group=2)),
        samples.alone(name, "tied", samples.mamba2(n_group=1), samples.sizes(n_group=1), tied=True),
    ]
