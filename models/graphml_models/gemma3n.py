"""Gemma 3n (Gemma Team 2025): gemma4's kin with several residual streams (AltUp, arXiv:2301.13310).

A layer works on one stream; the others are predicted and corrected after it. Layers have low-rank residuals
(LAuReL, arXiv:2411.07501), and the first ones' gates keep but their largest numbers. Letters as in gemma4;
A streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, gemma4
from graphml_models._samples import HEAD_NORMS, N_EMBD, N_VOCAB, POST_NORMS, Metadata, transformer
from graphml_models._windows import read_local_rope, read_windows

SPARSE_LAYERS, SPARSE_SPREAD = 10, 1.6448533535003662  # of files that say nothing of it, as llama.cpp has it
TINY = 1e-20  # beside a mean of squares


@dataclass(frozen=True)
class Config(gemma4.Config):
    """As gemma4's; spreads: how many deviations above the mean a layer's gates must be, 0 if all are kept."""

    spreads: tuple[float, ...]
    n_stream: int
    active: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        n_layer, n_stream = known.n_layer, keys.integer("altup.num_inputs", 4)
        n_own = n_layer - keys.integer("attention.shared_kv_layers", max(n_layer - 20, 0))
        if not (2 <= n_own <= n_layer or n_own == n_layer):
            raise keys.unsupported("attention.shared_kv_layers", f"0 to {n_layer - 2} of {n_layer} layers")
        if not 2 <= n_stream <= 64:
            raise keys.unsupported("altup.num_inputs", "2 to 64")
        active = keys.integer("altup.active_idx", 0)
        if not 0 <= active < n_stream:
            raise keys.unsupported("altup.active_idx", f"0 to {n_stream - 1}")
        spreads: tuple[float, ...] = tuple(
            SPARSE_SPREAD if i < SPARSE_LAYERS else 0.0 for i in range(n_layer)
        )
        if keys.has("activation_sparsity_scale"):
            said = keys.numbers("activation_sparsity_scale", n_layer, 0.0)
            spreads = tuple(value if value > 0 else 0.0 for value in said)  # minus infinity keeps all
        return cls(
            **vars(known),
            windows=read_windows(keys, n_layer, period=5),
            local_rope=read_local_rope(keys, known.rope, base=10000.0, scaled=False),
            heads_kv=(known.n_head_kv,) * n_layer,
            local_dim=known.head_dim,
            n_own=n_own,
            n_input=keys.integer("embedding_length_per_layer_input", 256),
            final_logit_softcapping=keys.number("final_logit_softcapping", 30.0),
            spreads=spreads,
            n_stream=n_stream,
            active=active,
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    tables = {False: config.rope.table(g, weights), True: config.local_rope.table(g, weights)}
    x_TD = g.scale(g.embed(weights["token_embd"], g.tokens), config.n_embd**0.5, name="embedding_scaled")
    inputs_TLP = gemma4.own_inputs(g, config, weights, x_TD, shorter=True)
    others = projected(g, weights, "altup_proj", [x_TD] * (config.n_stream - 1), x_TD)
    streams, active, eps = [x_TD, *others], config.active, config.norm_eps

    def normed(layer: Layer, x: Node, name: str) -> Node:
        return g.rms_norm(x, layer[name], eps, name)

    for layer in weights.layers(config.n_layer):
        predicted = predict(g, config, layer, streams)
        x_TD = predicted[active]
        h_TD = normed(layer, x_TD, "attn_norm")
        low_TD = layer.linear(layer.linear(h_TD, "laurel_l"), "laurel_r", "laurel")
        low_TD = g.add(normed(layer, low_TD, "laurel_post_norm"), h_TD, "laurel_residual")
        h_TD = layer.linear(gemma4.attention(g, config, layer, tables, h_TD), "attn_output", "attn_out")
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_attention_norm"), "attn_residual")
        x_TD = g.scale(g.add(x_TD, low_TD), 2**-0.5, name="attn_and_laurel")
        h_TD = feed_forward(g, layer, normed(layer, x_TD, "ffn_norm"), config.spreads[layer.index])
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_ffw_norm"), "ffn_residual")
        streams = correct(g, config, layer, predicted, x_TD)
        at = layer.index * config.n_input
        own_TP = g.columns(inputs_TLP, at, at + config.n_input, "own_input")
        first_TD = g.mul(streams[active], layer["altup_correct_scale"])
        h_TP = g.mul(g.gelu(layer.linear(first_TD, "inp_gate", "own_gate")), own_TP)
        h_TD = normed(layer, layer.linear(h_TP, "proj", "own"), "post_norm")
        streams = [streams[0], *(g.add(stream, h_TD, "own_residual") for stream in streams[1:])]
    total = streams[0]
    for projection in projected(g, weights, "altup_unembd_proj", streams[1:], streams[active]):
        total = g.add(total, projection)
    x_TD = g.scale(total, 1 / config.n_stream, name="mean_of_streams")
    logits = weights.logits(g.rms_norm(x_TD, weights["output_norm"], eps, "output_norm"))
    return g.softcap(logits, config.final_logit_softcapping) if config.final_logit_softcapping else logits


def projected(g: Builder, weights: Tensors, name: str, streams: list[Node], like: Node) -> list[Node]:
    """Each stream by a matrix of its own, as long as another value then."""
    width, shape = fixed(like.shape[1]), weights[name].shape
    if shape != (len(streams), width, width):
        raise ArchitectureError(
            f"tensor {name}.weight: wanted [{len(streams)}, {width}, {width}], a matrix for each other "
            f"stream; got {weights[name].type}"
        )
    joined = streams[0]
    for stream in streams[1:]:
        joined = g.concat(joined, stream)
    y_TAD = g.rms_norm(g.per_head(weights[name], g.heads(joined, len(streams)), name), None, TINY)
    length = g.sqrt(g.scale(g.sum_rows(g.sqr(like)), 1 / width), "length")
    y_TE = g.flatten(y_TAD)
    return [g.mul(g.columns(y_TE, i * width, (i + 1) * width), length) for i in range(len(streams))]


def routed(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """What the mixing of streams depends on, [T, A]."""
    h_TD = g.rms_norm(x_TD, layer["altup_router_norm"], config.norm_eps, "altup_router_norm")
    return g.tanh(layer.linear(g.scale(h_TD, 1 / config.n_embd), "altup_router"), "modalities")


def predict(g: Builder, config: Config, layer: Layer, streams: list[Node]) -> list[Node]:
    """Each stream with the others mixed in."""
    count = config.n_stream
    mix_TB = layer.linear(
        routed(g, config, layer, streams[config.active]), "altup_predict_coef", rows=count**2
    )
    predicted = []
    for i in range(count):
        total = streams[i]
        for j in range(count):
            at = i * count + j
            total = g.add(total, g.mul(streams[j], g.columns(mix_TB, at, at + 1)), "predicted")
        predicted.append(total)
    return predicted


def correct(g: Builder, config: Config, layer: Layer, predicted: list[Node], x_TD: Node) -> list[Node]:
    """Each stream with its part of what the layer changed in the active one."""
    change_TD = g.sub(x_TD, predicted[config.active], "change")
    mix_TA = layer.linear(routed(g, config, layer, x_TD), "altup_correct_coef", rows=config.n_stream)
    mix_TA = g.scale(mix_TA, 1.0, 1.0, name="correction")
    return [
        g.add(prediction, g.mul(change_TD, g.columns(mix_TA, i, i + 1)), "corrected")
        for i, prediction in enumerate(predicted)
    ]


def feed_forward(g: Builder, layer: Layer, x_TD: Node, spread: float) -> Node:
    """GEGLU; spread: gates count as far as they are so many deviations above their mean."""
    gate_TF, up_TF = layer.linear(x_TD, "ffn_gate", "gate"), layer.linear(x_TD, "ffn_up", "up")
    if spread:
        width = fixed(gate_TF.shape[1])
        apart_TF = g.sub(gate_TF, g.scale(g.sum_rows(gate_TF), 1 / width))
        deviation_T1 = g.sqrt(g.scale(g.sum_rows(g.sqr(apart_TF)), 1 / width), "deviation")
        gate_TF = g.relu(g.sub(apart_TF, g.scale(deviation_T1, spread)), "sparse_gate")
    return layer.linear(g.mul(g.gelu(gate_TF), up_TF, "gated"), "ffn_down", "down")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: four layers, two of which look at what the others keep."""
    keys: Metadata = {
        "attention.sliding_window": 20, "attention.sliding_window_pattern": [1, 0, 1, 0],
        "attention.shared_kv_layers": 2, "rope.freq_base": 1e6, "final_logit_softcapping": 3.0,
        "embedding_length_per_layer_input": 8,
    }  # fmt: skip
    shared = tuple(f"blk.{i}.attn_{part}.weight" for i in (2, 3) for part in ("k", "v", "k_norm"))
    layer = {
        **POST_NORMS, **HEAD_NORMS, "inp_gate.weight": (8, N_EMBD), "proj.weight": (N_EMBD, 8),
        "post_norm.weight": (N_EMBD,), "altup_correct_coef.weight": (4, 4), "laurel_r.weight": (N_EMBD, 12),
        "altup_correct_scale.weight": (N_EMBD,), "altup_predict_coef.weight": (16, 4),
        "altup_router.weight": (4, N_EMBD), "altup_router_norm.weight": (N_EMBD,),
        "laurel_l.weight": (12, N_EMBD), "laurel_post_norm.weight": (N_EMBD,),
    }  # fmt: skip
    top = {
        "per_layer_token_embd.weight": (N_VOCAB, 32), "per_layer_model_proj.weight": (32, N_EMBD),
        "per_layer_proj_norm.weight": (8,), "altup_proj.weight": (3, N_EMBD, N_EMBD),
        "altup_unembd_proj.weight": (3, N_EMBD, N_EMBD),
    }  # fmt: skip
    return [transformer(name, tied=True, n_layer=4, layer=layer, top=top, metadata=keys, without=shared)]
