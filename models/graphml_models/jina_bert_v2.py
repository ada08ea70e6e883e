"""Jina Embeddings 2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi on both sides and GEGLU.

The one for code has norms of queries and keys, and adds a layer's input twice.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models._attention import project
from graphml_models._encoder import Config, embedded, encoder
from graphml_models._ffn import gated_ffn, halved_ffn
from graphml_models._layer_norm import norm
from graphml_models._samples import N_EMBD, N_FF, bert_like
from graphml_models.bert import gelu_ffn

CAUSAL, OUTPUT = False, "embeddings"
MAX_BIAS = 8.0  # the slope of the first head is 2 ** (-8 / heads); files do not say it


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Hidden rows [O, D]."""

    def attention(layer: Layer, x_TD: Node) -> Node:
        q_TNH, k_TNH, v_TNH = project(g, config, layer, x_TD)
        if layer.get("attn_q_norm"):
            q_TNH = _normed(g, config, layer, q_TNH, "attn_q_norm")
        if layer.get("attn_k_norm"):
            k_TNH = _normed(g, config, layer, k_TNH, "attn_k_norm")
        return g.attend(q_TNH, k_TNH, v_TNH, layer.index, config.scale, max_bias=MAX_BIAS)

    return encoder(weights, config, embedded(weights, config), attention, geglu)


def _normed(g: Builder, config: Config, layer: Layer, x_TNH: Node, name: str) -> Node:
    """The layer norm over all heads at once."""
    return g.heads(norm(layer, g.flatten(x_TNH), name, config.norm_eps), config.n_head)


def geglu(layer: Layer, x_TD: Node) -> Node:
    """Feed-forward with GEGLU (Shazeer 2020, arXiv:2002.05202), its gate a matrix, half of one or none."""
    if layer.get("ffn_gate"):
        return gated_ffn(layer.g, layer, x_TD, Builder.gelu_erf)
    halves = layer["ffn_up"].shape[0] != layer["ffn_down"].shape[1]
    return halved_ffn(layer.g, layer, x_TD, Builder.gelu_erf) if halves else gelu_ffn(layer, x_TD)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: with a gate; as for code."""
    norms = {f"attn_{part}.{kind}": (N_EMBD,)
             for part in ("q_norm", "k_norm", "norm_2") for kind in ("weight", "bias")}  # fmt: skip
    halves = {"ffn_up.weight": (2 * N_FF, N_EMBD), "ffn_up.bias": (2 * N_FF,)}
    return [bert_like(name, gated=True), bert_like(name, "code", layer={**norms, **halves})]
