"""Nomic Embed v2 (Nussbaum and Duderstadt 2025, arXiv:2502.07972): nomic-bert with experts in some layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _encoder, nomic_bert
from graphml_models._experts import route
from graphml_models._samples import N_EMBD, N_FF, bert_like
from graphml_models.bert import gelu_ffn

CAUSAL, OUTPUT = False, "embeddings"


@dataclass(frozen=True)
class Config(_encoder.Config):
    """As of the family; of `period` layers the second has experts, none if 0."""

    period: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        period = keys.integer("moe_every_n_layers", 0)
        if period < 0:
            raise keys.unsupported("moe_every_n_layers", "0 or more")
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), period=period)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Hidden rows [O, D]."""

    def ffn(layer: Layer, x_TD: Node) -> Node:
        if not config.period or layer.index % config.period != 1:
            return gelu_ffn(layer, x_TD)
        scores_TE = g.softmax(layer.linear(x_TD, "ffn_gate_inp", "router"))
        chosen = route(g, layer, scores_TE, config.n_expert_used, normalise=False)
        return chosen.combine(chosen.linear(g.gelu_erf(chosen.linear(x_TD, "ffn_up_exps")), "ffn_down_exps"))

    return nomic_bert.build(g, config, weights, ffn)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: the second of two layers has experts."""
    experts = {"blk.1.ffn_gate_inp.weight": (5, N_EMBD), "blk.1.ffn_up_exps.weight": (5, N_FF, N_EMBD),
               "blk.1.ffn_down_exps.weight": (5, N_EMBD, N_FF)}  # fmt: skip
    dense = tuple(f"blk.1.ffn_{part}.{kind}" for part in ("up", "down") for kind in ("weight", "bias"))
    keys = {"moe_every_n_layers": 2, "expert_count": 5, "expert_used_count": 2}
    return [bert_like(name, fused=True, top=experts, without=dense, metadata=keys)]
