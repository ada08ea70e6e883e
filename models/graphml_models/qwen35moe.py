"""Qwen3.5 with experts (Qwen Team 2026, "Qwen3.5"): qwen35 with the feed-forward of qwen3next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _ahead, qwen3next, qwen35
from graphml_models._delta_net import GATED_HEADS, KEYS, TENSORS
from graphml_models._hybrid import hybrid
from graphml_models._rope import read_sections
from graphml_models._samples import SECTIONS, shared_expert


@dataclass(frozen=True)
class Config(qwen3next.Config):
    """As of qwen3next; the sections of the rope are looked at."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        read_sections(keys)
        return super().read(keys)


build = partial(qwen35.build, feed_forward=qwen3next.feed_forward)
ahead = qwen3next.ahead


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, gate and up of their experts in one tensor."""
    both = {"ffn_gate_up_exps.weight": (5, 192, 64), "ffn_gate_inp_shexp.weight": (64,)}
    keys = {**KEYS, **SECTIONS, "full_attention_interval": 2}
    gone = ("ffn_norm.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight")
    layer = {**GATED_HEADS, **shared_expert(), **both}
    plain = hybrid(name, TENSORS, n_expert=5, layer=layer, metadata=keys, without=gone)
    return [plain, _ahead.sample(name, plain)]
