"""Granite 3 with experts (IBM 2024): granite under another name, always with positions."""

from typing import Self

from graphml.loading.architecture import Keys
from graphml_models import _config, granite
from graphml_models.granite import build as build
from graphml_models.granite import sample as sample


class Config(granite.Config):
    """As granite's."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), scales=granite.Scales.read(keys), positions=True)
