"""Granite Switch (IBM 2026, "Granite Switch 4.1"): granite with LoRA adapters that a text's tokens switch on.

A control token switches its adapter on for itself and for what follows (activated LoRA: Greenewald et al.
2025, arXiv:2504.12397). A text has one: of several the mean of their numbers counts, rounded, as in
llama.cpp. One more head of attention, without weights, finds the adapter of each token:
control tokens alone have large keys, and their values are numbers of adapters. T tokens, O output rows, D
model width, N heads, K key-value heads, H head width, F hidden, A adapters, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from graphml.errors import ArchitectureError
from graphml.ir.builder import told_weights
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import granite
from graphml_models._attention import fused_qkv, rotate, to_heads
from graphml_models._samples import FUSED_QKV, N_EMBD, N_FF, SPLIT_QKV, Metadata, Shapes, transformer

COUNT, WIDTH, GAIN = "adapters.count", "adapters.lora_rank", "adapters.router_gain"
CONTROLS, EMBEDDED = "adapters.token_ids_activate", "adapters.token_ids_substitute"
MOST_ADAPTERS, MOST_RANK = 256, 4096  # numbers of adapters are kept in the cache, exact in every type


@dataclass(frozen=True)
class Config(granite.Config):
    """And adapters: ids of the tokens that switch them on, and ids whose rows are embedded in their place.

    rank: of all adapters; gain: by how much keys of control tokens are above 0, and others below.
    """

    controls: tuple[int, ...]
    embedded: tuple[int, ...]
    rank: int
    gain: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = granite.Config.read(keys)
        count, rank, gain = keys.integer(COUNT), keys.integer(WIDTH), keys.number(GAIN, 15.0)
        for key, number, most in ((COUNT, count, MOST_ADAPTERS), (WIDTH, rank, MOST_RANK)):
            if not 1 <= number <= most:
                raise keys.unsupported(key, f"1 to {most}")
        if not gain > 0.0:
            raise keys.unsupported(GAIN, "a number above 0")
        controls, embedded = keys.integers(CONTROLS, count), keys.integers(EMBEDDED, count)
        if len(set(controls)) < count:
            raise keys.unsupported(CONTROLS, "another id for each adapter")
        for key, ids in ((CONTROLS, controls), (EMBEDDED, embedded)):
            if not all(0 <= token < known.n_vocab for token in ids):
                raise keys.unsupported(key, f"ids from 0 to {known.n_vocab - 1}")
        return cls(**vars(known), controls=controls, embedded=embedded, rank=rank, gain=gain)


class Switched(NamedTuple):
    """The parts of a layer, each matrix with what the adapter of a token adds to it.

    slot_T1: rows of the adapters' tensors, i32; 0 is that of no adapter.
    """

    config: Config
    slot_T1: Node

    def mixer(self, g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
        """Grouped-query attention, [T, N * H]."""
        parts = fused_qkv(g, config, layer, x_TD, scaled=False)
        switched = [
            self.added(layer, part, x_TD, f"attn_{name}", f"{name}_switched")
            for name, part in zip("qkv", parts, strict=True)
        ]
        q_TNH, k_TKH, v_TKH = to_heads(g, config, switched)
        if config.positions:
            q_TNH, k_TKH = rotate(g, table, "norm", q_TNH, k_TKH)
        return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)

    def project(self, layer: Layer, h: Node) -> Node:
        """Attention's output projection, [T, D]."""
        return self.linear(layer, h, "attn_output", "attn_out")

    def feed_forward(self, g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
        """SwiGLU."""
        gate_TF, up_TF = (self.linear(layer, x_TD, f"ffn_{name}", name) for name in ("gate", "up"))
        return self.linear(layer, g.mul(g.silu(gate_TF), up_TF, "swiglu"), "ffn_down", "down")

    def linear(self, layer: Layer, x: Node, tensor: str, name: str) -> Node:
        """X times the tensor and the adapter's; name: of the node."""
        return self.added(layer, layer.linear(x, tensor, scaled=False), x, tensor, name)

    def added(self, layer: Layer, y: Node, x: Node, tensor: str, name: str) -> Node:
        """Y plus what the adapter of each token makes of x."""
        g, down_ARD, up_AER = layer.g, layer[f"{tensor}.lora_a"], layer[f"{tensor}.lora_b"]
        count, rank = len(self.config.controls) + 1, self.config.rank
        if down_ARD.shape[:2] != (count, rank) or up_AER.shape != (count, y.shape[-1], rank):
            wanted = f"[{count}, {rank}, inputs] and [{count}, {y.shape[-1]}, {rank}] as lora_a and lora_b"
            raise ArchitectureError(
                f"layer {layer.index}: wanted {wanted}; got {told_weights([down_ARD, up_AER, y])}"
            )
        h_T1R = g.mul_mat_id(down_ARD, x, self.slot_T1)
        return g.add(y, g.flatten(g.mul_mat_id(up_AER, h_T1R, self.slot_T1)), name)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    count, width = len(config.controls), config.head_dim
    id_T1 = g.reshape(g.cast(g.tokens, "f32"), 1)
    id_TA = g.flatten(g.repeat(g.heads(id_T1, 1), count))
    is_TA = g.equal(id_TA, g.constant([float(token) for token in config.controls]), "switches")
    changes = [float(new - old) for old, new in zip(config.controls, config.embedded, strict=True)]
    tokens_T1 = g.add(id_T1, g.sum_rows(g.mul(is_TA, g.constant(changes))))
    own_T1 = g.sum_rows(g.mul(is_TA, g.constant([float(1 + i) for i in range(count)])))
    first_TH = g.less(g.cast(g.column_numbers(g.positions, width), "f32"), g.constant(0.5))
    key_TH = g.mul(first_TH, g.scale(g.sum_rows(is_TA), 2 * config.gain, -config.gain))
    q_T1H, k_T1H, v_T1H = (g.heads(x, 1) for x in (first_TH, key_TH, g.mul(first_TH, own_T1)))
    seen_T1 = g.columns(g.attend(q_T1H, k_T1H, v_T1H, config.n_layer, 1.0), 0, 1)
    slot_T1 = g.cast(g.floor(g.scale(g.clamp(seen_T1, 0.0, float(count)), 1.0, 0.5)), "i32", "adapter")
    switched = Switched(config, slot_T1)
    tokens_T = g.cast(g.reshape(tokens_T1), "i32", "embedded_ids")
    return granite.build(
        g, config, weights, switched.mixer, switched.feed_forward, switched.project, tokens_T
    )


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with one adapter."""
    keys: Metadata = {"logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 3.0, COUNT: 1, WIDTH: 3,
                      CONTROLS: [44], EMBEDDED: [5]}  # fmt: skip
    return [switching(name, keys)]


def switching(name: str, keys: Metadata) -> SampleModel:
    """A model of two layers with the adapters that the metadata say."""
    shapes = {**dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (N_EMBD, N_EMBD)),
              "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF)}  # fmt: skip
    layer: Shapes = {"attn_qkv.weight": FUSED_QKV["attn_qkv.weight"]}
    count, rank = int(str(keys[COUNT])) + 1, int(str(keys[WIDTH]))
    for part, (rows, columns) in shapes.items():
        layer[f"{part}.lora_a"], layer[f"{part}.lora_b"] = (count, rank, columns), (count, rows, rank)
    return transformer(name, n_head_kv=4, tied=True, metadata=keys, layer=layer, without=SPLIT_QKV)
