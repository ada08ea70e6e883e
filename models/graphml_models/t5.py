"""T5 (Raffel et al. 2019, arXiv:1910.10683) and Flan-T5: an encoder reads a text, a decoder answers it.

T tokens, O output rows, D model width, N heads, K key-value heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import t5encoder
from graphml_models._attention import project
from graphml_models._config import MAX_LAYERS
from graphml_models._samples import HEAD_DIM, N_EMBD, N_FF, N_HEAD, N_VOCAB
from graphml_models.t5encoder import biases, feed_forward

N_LAYER, START = "decoder_block_count", "decoder_start_token_id"


@dataclass(frozen=True)
class Config(t5encoder.Config):
    """n_layer: of the encoder; n_layer_decoder: of the decoder; start_token: what an answer begins with."""

    n_layer_decoder: int
    start_token: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata; without another start token it is T5's padding, 0."""
        encoder = t5encoder.Config.read(keys)
        n_layer, start = keys.integer(N_LAYER, encoder.n_layer), keys.integer(START, 0)
        if not 1 <= n_layer <= MAX_LAYERS:
            raise keys.unsupported(N_LAYER, f"1 to {MAX_LAYERS} layers")
        if start < 0:
            raise keys.unsupported(START, "the id of a token")
        return cls(**vars(encoder), n_layer_decoder=n_layer, start_token=start)


def encode(g: Builder, config: Config, weights: Tensors) -> Node:
    """Hidden rows [T, D] of the encoder; each layer of the decoder has keys and values of its own of them."""
    x_TD = t5encoder.build(g, config, weights)
    for layer in weights.layers(config.n_layer_decoder, prefix="dec.blk"):
        k_TKH, v_TKH = (
            g.heads(
                layer.linear(x_TD, f"cross_attn_{x}", f"cross_{x}", rows=config.n_head_kv * config.head_dim),
                config.n_head_kv,
            )
            for x in "kv"
        )
        g.keep_source(k_TKH, v_TKH, layer.index)
    return x_TD


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """The decoder: attention to what was said, attention to the source text, feed-forward.

    Where the output matrix is the embedding, rows are scaled before it, as T5 was trained (llama.cpp leaves
    that out).
    """
    x_TD = g.embed(weights["token_embd"], g.tokens)
    bias = None
    for layer in weights.layers(config.n_layer_decoder, prefix="dec.blk"):
        if bias is None or layer.get("attn_rel_b"):
            bias = biases(g, config, layer, "dec.blk")
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        q_TNH, k_TKH, v_TKH = project(g, config, layer, h_TD)
        h_TD = g.attend_relative(q_TNH, k_TKH, v_TKH, layer.index, bias)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_o", "attn_out"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["cross_attn_norm"], config.norm_eps, "cross_norm")
        h_TD = layer.linear(h_TD, "cross_attn_q", "cross_q", rows=config.n_head * config.head_dim)
        h_TD = g.attend_source(g.heads(h_TD, config.n_head), layer.index, config.n_head_kv, scale=1.0)
        x_TD = g.add(x_TD, layer.linear(h_TD, "cross_attn_o", "cross_out"), "cross_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, feed_forward(g, layer, h_TD), "ffn_residual")
    x_TD = g.rms_norm(x_TD, weights["dec.output_norm"], config.norm_eps, "output_norm")
    if weights.get("output") is None:
        x_TD = g.scale(x_TD, config.n_embd**-0.5, name="output_scaled")
    return weights.logits(x_TD)


def sample(name: str) -> list[SampleModel]:
    """T5 1.1 with more layers in the decoder than in the encoder; the first T5."""
    plain, inner = t5encoder.sample(name)[0], HEAD_DIM * N_HEAD
    decoder = {
        **{f"{part}_norm.weight": (N_EMBD,) for part in ("attn", "cross_attn", "ffn")},
        **{f"{part}attn_{x}.weight": (inner, N_EMBD) for part in ("", "cross_") for x in "qkv"},
        **{f"{part}attn_o.weight": (N_EMBD, inner) for part in ("", "cross_")},
        "ffn_gate.weight": (N_FF, N_EMBD), "ffn_up.weight": (N_FF, N_EMBD), "ffn_down.weight": (N_EMBD, N_FF),
    }  # fmt: skip
    top = {"dec.output_norm.weight": (N_EMBD,), "dec.blk.0.attn_rel_b.weight": (8, N_HEAD)}

    def layers(count: int) -> dict[str, tuple[int, ...]]:
        return {f"dec.blk.{i}.{part}": shape for i in range(count) for part, shape in decoder.items()}

    tied = {**plain.tensors, **top, **layers(2)}
    return [
        SampleModel(
            "plain",
            {**plain.metadata, f"{name}.{N_LAYER}": 3, f"{name}.{START}": 3},
            {**plain.tensors, **top, **layers(3), "output.weight": (N_VOCAB, N_EMBD)},
        ),
        SampleModel(
            "tied",
            plain.metadata,
            {tensor: shape for tensor, shape in tied.items() if not tensor.endswith("ffn_gate.weight")},
        ),
    ]
