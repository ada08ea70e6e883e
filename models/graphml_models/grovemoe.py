"""Grove MoE (Wu et al. 2025, arXiv:2508.07785): qwen3moe with a small expert beside each group of experts.

As in llama.cpp the small experts read what the others give (in the authors' code, what those read), and the
most probable experts' groups are weighted by the probabilities of the experts that have the groups' numbers
(in the authors' code, of those experts). T tokens, D model width, E experts, U used per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama, qwen3
from graphml_models._experts import Chosen, normalised, route
from graphml_models._samples import HEAD_NORMS, N_EMBD, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And how many experts share a small one, and the factor of its output."""

    group_size: int
    group_scale: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        size = keys.integer("experts_per_group")
        if size < 1:
            raise keys.unsupported("experts_per_group", "at least 1")
        known = _config.read(keys)
        return cls(**vars(known), group_size=size, group_scale=keys.number("expert_group_scale"))


def experts(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Chosen experts and, scaled, the small ones of groups, [T, D]."""
    probabilities_TE = g.softmax(layer.linear(x_TD, "ffn_gate_inp", "router"))
    chosen = route(g, layer, probabilities_TE, config.n_expert_used)
    y_TD = chosen.combine(chosen.gated(x_TD))

    n_expert = fixed(probabilities_TE.shape[1])
    n_group = n_expert // config.group_size
    top_k_TU = g.top_k(probabilities_TE, min(config.n_expert_used, n_group), "top_k_experts")
    groups_TE = g.column_numbers(probabilities_TE, n_expert, each=config.group_size)
    ids_TU = g.gather(groups_TE, top_k_TU, "groups")
    weights_TU = normalised(g, g.gather(probabilities_TE, ids_TU, "group_weights"))
    small = Chosen(g, layer, ids_TU, weights_TU, n_expert=n_group)
    small_TD = small.combine(small.gated(y_TD, kind="chexps"))
    return g.add(y_TD, g.scale(small_TD, config.group_scale), "experts_and_groups")


build = partial(llama.build, attention=qwen3.attention, feed_forward=experts)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: groups of two experts."""
    small = {"ffn_gate_chexps.weight": (3, 32, N_EMBD), "ffn_up_chexps.weight": (3, 32, N_EMBD),
             "ffn_down_chexps.weight": (3, N_EMBD, 32)}  # fmt: skip
    keys = {"experts_per_group": 2, "expert_group_scale": 0.5}
    return [transformer(name, n_expert=6, layer={**HEAD_NORMS, **small}, metadata=keys)]
