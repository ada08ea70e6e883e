"""The encoder of T5 (Raffel et al. 2019, arXiv:1910.10683): sentence-T5, GTR; biases for distances, no scale.

T tokens, O output rows, D model width, N heads, F hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models._attention import project
from graphml_models._ffn import gated_ffn, plain_ffn
from graphml_models._samples import HEAD_DIM, N_EMBD, N_HEAD, transformer

CAUSAL, OUTPUT = False, "embeddings"


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; n_buckets: of distances."""

    n_buckets: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        n_buckets = keys.integer("attention.relative_buckets_count")
        if n_buckets < 4 or n_buckets % 2:
            raise keys.unsupported("attention.relative_buckets_count", "an even number of at least 4")
        known = _config.read(keys)
        return cls(**vars(known), n_buckets=n_buckets)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Hidden rows [T, D]; the first layer's biases are those of all that have none."""
    x_TD = g.embed(weights["token_embd"], g.tokens)
    bias = None
    for layer in weights.layers(config.n_layer, prefix="enc.blk"):
        bias = biases(g, config, layer) if bias is None or layer.get("attn_rel_b") else bias
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        q_TNH, k_TNH, v_TNH = project(g, config, layer, h_TD)
        h_TD = g.attend_relative(q_TNH, k_TNH, v_TNH, layer.index, bias)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_o", "attn_out"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, feed_forward(g, layer, h_TD), "ffn_residual")
    return g.rms_norm(x_TD, weights["enc.output_norm"], config.norm_eps, "output_norm")


def biases(g: Builder, config: Config, layer: Layer, blocks: str = "enc.blk") -> Node:
    """What is added to scores, [buckets, N]."""
    bias = layer["attn_rel_b"]
    if bias.shape != (config.n_buckets, config.n_head):
        raise ArchitectureError(
            f"tensor {blocks}.{layer.index}.attn_rel_b.weight: wanted [{config.n_buckets}, {config.n_head}], "
            f"buckets and heads; got {bias.type}"
        )
    return g.dequantize(bias)


def feed_forward(g: Builder, layer: Layer, x_TD: Node) -> Node:
    """GEGLU (T5 1.1, Flan), or ReLU without a gate."""
    gated = layer.get("ffn_gate")
    return gated_ffn(g, layer, x_TD, Builder.gelu) if gated else plain_ffn(g, layer, x_TD, Builder.relu)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    encoder = transformer(
        name, n_head_kv=4, tied=True, metadata={"attention.relative_buckets_count": 8},
        top={"enc.output_norm.weight": (N_EMBD,), "blk.0.attn_rel_b.weight": (8, N_HEAD),
             **{f"blk.{i}.attn_o.weight": (N_EMBD, N_HEAD * HEAD_DIM) for i in range(2)}},
    )  # fmt: skip
    tensors = {
        tensor.replace("blk.", "enc.blk."): shape
        for tensor, shape in encoder.tensors.items()
        if tensor != "output_norm.weight" and not tensor.endswith("attn_output.weight")
    }
    return [SampleModel(encoder.name, encoder.metadata, tensors)]
