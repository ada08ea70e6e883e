"""Gemma 4 (Gemma Team 2026): gemma3 with heads of two widths, inputs of their own for layers, shared caches.

The last layers attend to keys and values that earlier ones have kept. Some models have experts beside the
feed-forward. T tokens, O output rows, D model width, N heads, K key-value heads, H head width, L layers,
P width of a layer's own input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _windows
from graphml_models._config import Heads
from graphml_models._experts import route
from graphml_models._ffn import gated_ffn
from graphml_models._rope import Rope
from graphml_models._samples import (
    HEAD_DIM,
    HEAD_NORMS,
    N_EMBD,
    N_FF,
    N_VOCAB,
    POST_NORMS,
    Metadata,
    transformer,
)
from graphml_models._windows import read_windows


@dataclass(frozen=True)
class Config(_windows.Config):
    """As of every decoder, with what differs by layer; local: of layers with a window.

    n_own: layers that keep keys and values; n_input: width of a layer's own input, 0 without.
    """

    heads_kv: tuple[int, ...]
    local_dim: int
    n_own: int
    n_input: int
    final_logit_softcapping: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, heads=Heads(keys.integer("attention.head_count"), 1))
        n_layer, local_dim = known.n_layer, keys.integer("attention.key_length_swa")
        n_own = n_layer - keys.integer("attention.shared_kv_layers", 0)
        if not (2 <= n_own <= n_layer or n_own == n_layer):
            raise keys.unsupported("attention.shared_kv_layers", f"0 to {n_layer - 2} of {n_layer} layers")
        if local_dim < 1:
            raise keys.unsupported("attention.key_length_swa", "at least 1")
        return cls(
            **vars(known),
            windows=read_windows(keys, n_layer, period=6),
            local_rope=Rope(
                n_rot=keys.integer("rope.dimension_count_swa", local_dim),
                freq_base=keys.number("rope.freq_base_swa", 10000.0),
            ),
            heads_kv=keys.integers("attention.head_count_kv", n_layer),
            local_dim=local_dim,
            n_own=n_own,
            n_input=keys.integer("embedding_length_per_layer_input", 0),
            final_logit_softcapping=keys.number("final_logit_softcapping", 0.0),
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    tables = {False: config.rope.table(g, weights), True: config.local_rope.table(g)}
    x_TD = g.scale(g.embed(weights["token_embd"], g.tokens), config.n_embd**0.5, name="embedding_scaled")
    inputs_TLP = own_inputs(g, config, weights, x_TD) if config.n_input else None

    def normed(layer: Layer, x: Node, name: str) -> Node:
        return g.rms_norm(x, layer[name], config.norm_eps, name)

    for layer in weights.layers(config.n_layer):
        h_TD = attention(g, config, layer, tables, normed(layer, x_TD, "attn_norm"))
        h_TD = normed(layer, layer.linear(h_TD, "attn_output", "attn_out"), "post_attention_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = gated_ffn(g, layer, normed(layer, x_TD, "ffn_norm"), Builder.gelu, scaled=True)
        if layer.get("ffn_gate_inp"):
            h_TD = normed(layer, h_TD, "post_ffw_norm_1")
            chosen_TD = experts(g, config, layer, x_TD, normed(layer, x_TD, "pre_ffw_norm_2"))
            h_TD = g.add(h_TD, normed(layer, chosen_TD, "post_ffw_norm_2"), "ffn_and_experts")
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_ffw_norm"), "ffn_residual")
        if inputs_TLP is not None:
            at = layer.index * config.n_input
            own_TP = g.columns(inputs_TLP, at, at + config.n_input, "own_input")
            h_TP = g.mul(g.gelu(layer.linear(x_TD, "inp_gate", "own_gate")), own_TP)
            x_TD = g.add(x_TD, normed(layer, layer.linear(h_TP, "proj", "own"), "post_norm"), "own_residual")
        factor = layer.get("layer_output_scale")
        x_TD = x_TD if factor is None else g.mul(x_TD, factor, "output_scaled")
    logits = weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))
    return g.softcap(logits, config.final_logit_softcapping) if config.final_logit_softcapping else logits


def own_inputs(g: Builder, config: Config, weights: Tensors, x_TD: Node, shorter: bool = False) -> Node:
    """What each layer is given of a token beside the residual, [T, L * P]: of a table and the embedding.

    shorter: the table may lack the last ids, which then have the row of id 0.
    """
    width = config.n_layer * config.n_input
    table = weights["per_layer_token_embd"]
    n_vocab, rows = fixed(weights["token_embd"].shape[0]), fixed(table.shape[0])
    if table.shape[1:] != (width,) or not (rows == n_vocab or (shorter and rows < n_vocab)):
        raise ArchitectureError(
            f"tensor {table.name}: wanted {width} numbers for each id of token_embd; got {table.type}"
        )
    ids = g.tokens
    if rows < n_vocab:
        number_T = g.cast(ids, "f32")  # exact for any id
        inside_T = g.less(number_T, g.constant(float(rows)))
        ids = g.cast(g.where(inside_T, number_T, g.constant(0.0)), "i32")
    looked_up = g.scale(g.embed(table, ids), config.n_input**0.5, name="own_inputs")
    inputs = g.scale(weights.linear(x_TD, "per_layer_model_proj", rows=width), config.n_embd**-0.5)
    inputs = g.rms_norm(g.heads(inputs, config.n_layer), weights["per_layer_proj_norm"], config.norm_eps)
    return g.scale(g.add(g.flatten(inputs), looked_up), 2**-0.5)


def attention(g: Builder, config: Config, layer: Layer, tables: dict[bool, Node], x_TD: Node) -> Node:
    """Attention over normed heads, values among them, without a scale, [T, N * H]."""
    eps, window, count = config.norm_eps, config.windows[layer.index], config.heads_kv[layer.index]
    width, table = config.local_dim if window else config.head_dim, tables[window > 0]

    def heads(name: str, count: int) -> Node:
        return g.heads(layer.linear(x_TD, f"attn_{name}", name, rows=count * width), count)

    q_TNH = g.rms_norm(heads("q", config.n_head), layer["attn_q_norm"], eps, "q_norm")
    q_TNH = g.rope(q_TNH, table, "neox", "q_rope")
    if layer.index >= config.n_own:  # the last layer of its kind that has kept any
        return g.attend(q_TNH, None, None, config.n_own - (2 if window else 1), 1.0, window)
    k_TKH = heads("k", count)
    v_TKH = heads("v", count) if layer.get("attn_v") else k_TKH
    k_TKH = g.rope(g.rms_norm(k_TKH, layer["attn_k_norm"], eps, "k_norm"), table, "neox", "k_rope")
    return g.attend(q_TNH, k_TKH, g.rms_norm(v_TKH, None, eps, "v_norm"), layer.index, 1.0, window)


def experts(g: Builder, config: Config, layer: Layer, x_TD: Node, h_TD: Node) -> Node:
    """GEGLU experts, chosen by what the residual itself says, [T, D]."""
    x_TD = g.scale(g.rms_norm(x_TD, None, config.norm_eps), config.n_embd**-0.5)
    x_TD = g.mul(x_TD, layer["ffn_gate_inp.scale"], "router_input")
    scores_TE = g.softmax(g.mul_mat(layer["ffn_gate_inp"], x_TD, "router"))
    chosen = route(g, layer, scores_TE, config.n_expert_used, scaled=True)
    if layer.get("ffn_gate_up_exps"):
        both = chosen.linear(h_TD, "ffn_gate_up_exps")
        half = fixed(both.shape[-1]) // 2
        gate_TUF, up_TUF = g.columns(both, 0, half), g.columns(both, half, 2 * half)
    else:
        gate_TUF, up_TUF = chosen.linear(h_TD, "ffn_gate_exps"), chosen.linear(h_TD, "ffn_up_exps")
    return chosen.combine(chosen.linear(g.mul(g.gelu(gate_TUF), up_TUF), "ffn_down_exps"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: four layers, two of which look at what the others keep; one with experts."""
    keys: Metadata = {
        "attention.sliding_window": 20, "attention.sliding_window_pattern": [1, 0, 1, 0],
        "attention.shared_kv_layers": 2, "attention.key_length": 32, "attention.key_length_swa": HEAD_DIM,
        "rope.dimension_count": 32, "rope.dimension_count_swa": HEAD_DIM, "rope.freq_base": 1e6,
        "final_logit_softcapping": 3.0,
    }  # fmt: skip
    wide = {"attn_q": (128, N_EMBD), "attn_k": (64, N_EMBD), "attn_v": (64, N_EMBD),
            "attn_output": (N_EMBD, 128), "attn_q_norm": (32,), "attn_k_norm": (32,)}  # fmt: skip
    top = {f"blk.{i}.{part}.weight": shape for i in (1, 3) for part, shape in wide.items()}
    top["rope_freqs.weight"] = (16,)
    shared = tuple(f"blk.{i}.attn_{part}.weight" for i in (2, 3) for part in ("k", "v", "k_norm"))
    layer = {**POST_NORMS, **HEAD_NORMS, "layer_output_scale.weight": (1,)}
    own = {"inp_gate.weight": (8, N_EMBD), "proj.weight": (N_EMBD, 8), "post_norm.weight": (N_EMBD,)}
    inputs = {"per_layer_token_embd.weight": (N_VOCAB, 32), "per_layer_model_proj.weight": (32, N_EMBD),
              "per_layer_proj_norm.weight": (8,)}  # fmt: skip
    routed = {"ffn_gate_inp.weight": (5, N_EMBD), "ffn_gate_inp.scale": (N_EMBD,),
              "ffn_gate_up_exps.weight": (5, 2 * N_FF, N_EMBD), "ffn_down_exps.weight": (5, N_EMBD, N_FF),
              "ffn_down_exps.scale": (5,), "pre_ffw_norm_2.weight": (N_EMBD,),
              "post_ffw_norm_1.weight": (N_EMBD,), "post_ffw_norm_2.weight": (N_EMBD,)}  # fmt: skip
    keys["embedding_length_per_layer_input"] = 8
    dense, common = {**layer, **own}, {**top, **inputs}
    used: Metadata = {"expert_count": 5, "expert_used_count": 2}
    return [
        transformer(name, "dense", tied=True, n_layer=4, layer=dense, top=common,
                    metadata=keys, without=shared),
        transformer(name, "experts", tied=True, n_layer=4, layer={**dense, **routed}, top=common,
                    metadata={**keys, **used}, without=shared),
    ]  # fmt: skip
