"""Llama 4 (Meta 2025, "The Llama 4 herd"): attention in chunks, layers without positions; experts.

Layers with positions see their own chunk of the text and norm queries and keys behind the rope; every fourth
has none, sees all and scales queries far into a text. An expert's weight is applied to what goes into it.
T tokens, D model width, N heads, H head width, E experts, U used per token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama
from graphml_models._attention import project, rotate
from graphml_models._experts import Chosen, swiglu
from graphml_models._ffn import gated_ffn
from graphml_models._samples import dense_layers, shared_expert, transformer
from graphml_models._windows import read_local_rope, read_windows

NO_ROPE = 4  # where there are chunks, the last of so many layers has no positions
STEP = 8192  # tokens of a chunk, and after which queries grow again, where the file does not say it
PLAIN = 128  # the larger model, told by so many experts, does not norm queries and keys


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; chunks: how many tokens those of each layer have, 0 if it sees all.

    norms: of queries and keys; temperature: by how much queries are scaled without positions, after how many
    tokens each time.
    """

    chunks: tuple[int, ...]
    norms: bool
    temperature: float
    temperature_step: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        known = replace(known, rope=read_local_rope(keys, known.rope))
        return cls(
            **vars(known),
            chunks=read_windows(keys, known.n_layer, period=4, size=STEP),
            norms=keys.integer("expert_count", 0) != PLAIN,
            temperature=keys.number("attention.temperature_scale", 0.1),
            temperature_step=keys.integer("attention.temperature_length", 0) or STEP,
        )


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    if (layer.index + 1) % NO_ROPE or not any(config.chunks):
        q_TNH, k_TKH = rotate(g, table, "norm", q_TNH, k_TKH)
        if config.norms:
            q_TNH = g.rms_norm(q_TNH, None, config.norm_eps, "q_norm")
            k_TKH = g.rms_norm(k_TKH, None, config.norm_eps, "k_norm")
    else:
        factor_T = g.position_scale(config.temperature, config.temperature_step, offset=1)
        q_TNH = g.mul(q_TNH, factor_T, "q_scaled")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, chunk=config.chunks[layer.index])


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, or experts chosen by their scores beside a shared one, [T, D].

    What goes into an expert is multiplied with the sigmoid of its score: so are its gate and up, which cost
    less to multiply.
    """
    if layer.get("ffn_gate_inp") is None:
        return gated_ffn(g, layer, x_TD)
    scores_TE = layer.linear(x_TD, "ffn_gate_inp", "router")
    ids_TU = g.top_k(scores_TE, config.n_expert_used, "experts")
    weights_TU = g.sigmoid(g.gather(scores_TE, ids_TU), "expert_weights")
    weights_TU1 = g.reshape(weights_TU, fixed(weights_TU.shape[1]), 1)

    def weighted(g: Builder, gate_TUF: Node, up_TUF: Node) -> Node:
        return swiglu(g, g.mul(gate_TUF, weights_TU1), g.mul(up_TUF, weights_TU1))

    chosen = Chosen(g, layer, ids_TU, weights_TU)
    chosen_TD = chosen.total(chosen.gated(x_TD, weighted))
    return g.add(chosen_TD, gated_ffn(g, layer, x_TD, suffix="_shexp"), "experts")


build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: chunks shorter than the texts, experts in every other layer; all is seen."""
    keys = {"attention.sliding_window": 20, "attention.temperature_length": 16,
            "attention.temperature_scale": 0.5}  # fmt: skip
    model = partial(transformer, name, n_expert=5, layer=shared_expert())
    return [model("chunks", n_layer=4, metadata=keys, **dense_layers(0, 2)),
            model("all", metadata={"attention.sliding_window": 0})]  # fmt: skip
