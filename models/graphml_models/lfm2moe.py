"""LFM2 with experts (Liquid AI 2025, arXiv:2511.23404): lfm2 with DeepSeek-V3's experts, without windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import lfm2
from graphml_models._hybrid import hybrid
from graphml_models._routing import Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST


@dataclass(frozen=True)
class Config(lfm2.Config):
    """And how experts are chosen."""

    routing: Routing

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = lfm2.without_window(keys)
        return cls(**vars(known), routing=replace(Routing.read(keys), normalise=True))


build = partial(lfm2.build, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [
        hybrid(
            name, lfm2.MEMORY, n_expert=5, layer={"exp_probs_b.bias": (5,)},
            metadata={**lfm2.KEYS, "expert_gating_func": 2}, top={**lfm2.TOP, **DENSE_FIRST["top"]},
            without=("output_norm.weight", *DENSE_FIRST["without"]),
        )
    ]  # fmt: skip
