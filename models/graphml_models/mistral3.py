"""Mistral 3 and Ministral 3 (Mistral AI 2025): llama whose queries far into a text are scaled up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama
from graphml_models._attention import rotated_heads
from graphml_models._rope import Rope
from graphml_models._samples import Metadata, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And by how much queries are scaled (0: not), and after how many tokens each time."""

    temperature: float
    temperature_step: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        known = replace(known, rope=_yarn(keys, known.rope))
        temperature = keys.number("attention.temperature_scale", 0.0)
        step = keys.integer("rope.scaling.original_context_length", known.n_ctx)
        if temperature and step < 1:
            raise keys.unsupported("rope.scaling.original_context_length", "at least 1")
        return cls(**vars(known), temperature=temperature, temperature_step=step)


def _yarn(keys: Keys, rope: Rope) -> Rope:
    """The rope, its magnitude divided by what DeepSeek's kind of YaRN has in the scale of scores instead."""
    stretch = -log(rope.freq_scale)
    if not rope.ext_factor or stretch <= 0.0:
        return rope
    divisor = 1.0 + 0.1 * keys.number("rope.scaling.yarn_log_multiplier", 0.0) * stretch
    return replace(rope, attn_factor=rope.attn_factor / divisor)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "norm")
    if config.temperature:
        q_TNH = g.mul(q_TNH, g.position_scale(config.temperature, config.temperature_step), "q_scaled")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


build = partial(llama.build, attention=attention)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, read beyond the length from which queries are scaled."""
    keys: Metadata = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.5,
    }
    return [transformer(name, metadata=keys), transformer(name, "experts", n_expert=5)]
