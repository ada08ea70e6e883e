"""MiniCPM (Hu et al. 2024, arXiv:2404.06395): granite with factors that follow from its size."""

from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _config, granite
from graphml_models._samples import transformer
from graphml_models.granite import build as build


class Config(granite.Config):
    """As granite's, with other defaults."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        scales = granite.Scales.read(
            keys, embedding=12.0, residual=1.4 / known.n_layer**0.5, logit=256.0 / known.n_embd
        )
        return cls(**vars(known), scales=scales, positions=True)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, tied=True), transformer(name, "experts", n_expert=5)]
