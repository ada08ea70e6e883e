"""Step 3.5 Flash (StepFun 2026, "Step 3.5 Flash"): windows, gated heads, and experts chosen by sigmoid.

Layers with a window have heads of another number, and rotate all of each; the others half of it. T tokens, O
output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _routing, _windows, llama
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._config import Heads, with_heads
from graphml_models._experts import LIMITS, SHARED_LIMITS, read_limits, swiglu
from graphml_models._ffn import Product
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, Metadata, shared_expert, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows

LEAST = 1e-6  # a limit below this is none, as in llama.cpp


@dataclass(frozen=True)
class Config(_routing.Config, _windows.Config):
    """And heads, windows and ropes by layer, and limits of gates.

    limits, shared_limits: see `limited`; of the chosen experts, and of what all tokens go through.
    """

    heads: tuple[Heads, ...]
    limits: tuple[float, ...]
    shared_limits: tuple[float, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads = _config.read_heads(keys)
        known = _config.read(keys, heads=heads[-1])
        n_rot = known.rope.n_rot
        if not keys.is_array(PATTERN):
            raise keys.unsupported(PATTERN, f"a truth value for each of {known.n_layer} layers")
        local = read_local_rope(keys, known.rope, base=10000.0, scaled=False)
        known = replace(known, rope=replace(known.rope, n_rot=n_rot // 2, first_factors=True))
        return cls(
            **vars(known),
            routing=Routing.read(keys, SIGMOID),
            heads=heads,
            windows=read_windows(keys, known.n_layer, period=0),
            local_rope=replace(local, n_rot=keys.integer("rope.dimension_count_swa", n_rot)),
            limits=read_limits(keys, known.n_layer, LIMITS),
            shared_limits=read_limits(keys, known.n_layer, SHARED_LIMITS),
        )


def tables_by_layer(g: Builder, config: Config, weights: Tensors) -> Sequence[Node]:
    """Each layer's rope table; the file's factors are for layers without a window, the first of them."""
    factors, n_rots = weights.get("rope_freqs"), (config.rope.n_rot, config.local_rope.n_rot)
    n_pairs = max(n_rots[window > 0] for window in config.windows) // 2
    if factors is not None and factors.shape != (n_pairs,):
        raise ArchitectureError(f"tensor rope_freqs.weight: wanted {n_pairs} factors; got {factors.type}")
    tables = {False: config.rope.table(g, weights), True: config.local_rope.table(g)}
    return [tables[window > 0] for window in config.windows]


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, each head of it gated, before its output projection, [T, N * H]."""
    config = with_heads(config, config.heads[layer.index])
    norm = norm_heads if layer.get("attn_q_norm", "attn_k_norm") else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox", norm)
    y_TD = g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])
    if layer.get("attn_gate") is None:
        return y_TD
    gate_TN = g.sigmoid(layer.linear(x_TD, "attn_gate", scaled=False, rows=config.n_head), "attn_gate")
    return g.flatten(g.mul(g.heads(y_TD, config.n_head), g.reshape(gate_TN, config.n_head, 1)), "gated")


def limited(limit: float) -> Product:
    """SwiGLU with SiLU(gate) of at most `limit` and what it lets through within it on both sides."""
    if limit <= LEAST:
        return swiglu
    low = float("-inf")
    return lambda g, gate, up: g.mul(g.clamp(g.silu(gate), low, limit), g.clamp(up, -limit, limit))


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, or experts of which one is shared; see `shared_and_chosen`."""
    product, shared = limited(config.limits[layer.index]), limited(config.shared_limits[layer.index])
    return shared_and_chosen(g, config, layer, x_TD, product, shared)


build = partial(llama.build, attention=attention, feed_forward=feed_forward, tables=tables_by_layer)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: a layer without a window and experts, then one with fewer heads and both."""
    keys: Metadata = {
        "attention.head_count": [4, 2], "attention.head_count_kv": [2, 1], "attention.key_length": 16,
        "attention.sliding_window": 20, PATTERN: [0, 1], "rope.freq_base": 5e6, "expert_weights_norm": True,
        "expert_weights_scale": 3.0, LIMITS: 0.5, SHARED_LIMITS: 0.4,
    }  # fmt: skip
    layer = {**shared_expert(), **HEAD_NORMS, "exp_probs_b.bias": (5,), "attn_gate.weight": (4, 64)}
    few = {"attn_q.weight": (32, 64), "attn_k.weight": (16, 64), "attn_v.weight": (16, 64),
           "attn_output.weight": (64, 32), "attn_gate.weight": (2, 64)}  # fmt: skip
    top = {**DENSE_FIRST["top"], **{f"blk.1.{part}": shape for part, shape in few.items()}}
    return [transformer(name, n_expert=5, layer=layer, metadata=keys, top=top, rope_factors=True,
                        without=DENSE_FIRST["without"])]  # fmt: skip
