"""Granite 3 (IBM 2024): llama with a factor each for embeddings, residuals and logits; positions may be off.

T tokens, O output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeVar

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._attention import rotated_heads
from graphml_models._experts import swiglu_experts
from graphml_models._ffn import gated_ffn
from graphml_models._samples import shared_expert, transformer


@dataclass(frozen=True)
class Scales:
    """Factors of embeddings and of what each block adds to the residual; logits are divided by theirs."""

    embedding: float
    residual: float
    logit: float

    @classmethod
    def read(
        cls, keys: Keys, embedding: float = 1.0, residual: float = 1.0, logit: float | None = None
    ) -> Self:
        """From the file's metadata, with defaults; 0 in the file stands for 1."""
        logit = keys.number("logit_scale", logit)
        if not logit:
            raise keys.unsupported("logit_scale", "a number other than 0")
        return cls(
            embedding=keys.number("embedding_scale", embedding) or 1.0,
            residual=keys.number("residual_scale", residual) or 1.0,
            logit=logit,
        )


@dataclass(frozen=True)
class Config(_config.Config):
    """And factors, and whether there are positions."""

    scales: Scales
    positions: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(
            **vars(known),
            scales=Scales.read(keys),
            positions=keys.boolean("rope.scaling.finetuned", True),
        )


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table if config.positions else None, x_TD, "norm")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, dense or with experts, one of which may be shared."""
    if not config.n_expert_used:  # folders of transformers call it shared all the same
        return gated_ffn(g, layer, x_TD, suffix="" if layer.get("ffn_gate") else "_shexp")
    chosen_TD = swiglu_experts(g, layer, x_TD, config.n_expert_used)
    if layer.get("ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp") is None:
        return chosen_TD
    return g.add(chosen_TD, gated_ffn(g, layer, x_TD, suffix="_shexp"), "experts_and_shared")


C = TypeVar("C", bound=Config)


def build(
    g: Builder,
    config: C,
    weights: Tensors,
    mixer: llama.Attention[C] = attention,
    feed_forward: llama.FeedForward[C] = feed_forward,
    project: llama.Project = llama.attn_out,
    tokens: Node | None = None,
) -> Node:
    """Logits [O, vocabulary]; mixer: attention, or what stands in its place; project: from there to D.

    tokens: ids whose rows are embedded, i32 [T], in place of those of the step.
    """
    table, scales = config.rope.table(g, weights), config.scales
    ids = g.tokens if tokens is None else tokens
    x_TD = g.scale(g.embed(weights["token_embd"], ids), scales.embedding, name="embedding_scaled")
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = mixer(g, config, layer, table, h_TD)
        h_TD = project(layer, h_TD)
        x_TD = g.add(x_TD, g.scale(h_TD, scales.residual, name="attn_scaled"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        h_TD = feed_forward(g, config, layer, h_TD)
        x_TD = g.add(x_TD, g.scale(h_TD, scales.residual, name="ffn_scaled"), "ffn_residual")
    x_TD = g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm")
    return g.scale(weights.logits(x_TD, "unscaled"), 1.0 / scales.logit, name="logits")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    keys = {"logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 3.0, "attention.scale": 0.1}
    more = {**keys, "rope.scaling.finetuned": False}
    return [transformer(name, tied=True, metadata=keys),
            transformer(name, "experts", n_expert=5, metadata=more, layer=shared_expert())]  # fmt: skip
