"""dots3.note (rednote hilab 2026): DeepSeek-V3 with gated heads, of which most layers see a window.

These have heads, widths and a rope of their own. In the others an index chooses the tokens that are seen,
where the context is longer. Letters as in `_latent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _routing, _windows, llama
from graphml_models._config import Heads
from graphml_models._index import index, read_index, sampled
from graphml_models._latent import folded, latent, narrow_queries, queries
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, Metadata, Shapes, shared_expert, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, tables_by_layer
from graphml_models.spark2_5 import gate_heads


@dataclass(frozen=True)
class Config(_routing.Config, _windows.Config):
    """And heads and windows by layer.

    indexer_n_head: of the index; indexer_top_k: how many tokens the others see, 0 if all.
    """

    heads: tuple[int, ...]
    indexer_n_head: int
    indexer_top_k: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, heads=Heads(1, 1))
        heads = _config.by_layer(keys, "attention.head_count", known.n_layer)
        if min(heads) < 1:
            raise keys.unsupported("attention.head_count", "at least 1 head in each layer")
        if not keys.is_array(PATTERN):
            raise keys.unsupported(PATTERN, "a yes or no for each layer")
        n_head, top_k = read_index(keys, known.n_ctx)
        return cls(
            **vars(known),
            routing=replace(Routing.read(keys, SIGMOID), scaled=True),
            heads=heads,
            windows=read_windows(keys, known.n_layer, period=0),
            local_rope=read_local_rope(keys, known.rope),
            indexer_n_head=n_head,
            indexer_top_k=top_k,
        )


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Latent attention, each head gated, before its output projection, [T, N * V]."""
    here, window = replace(config, n_head=config.heads[layer.index]), config.windows[layer.index]
    narrow = narrow_queries(g, config, layer, x_TD)
    chooses = config.indexer_top_k and not window
    selected = None
    if chooses:
        heads, top_k = config.indexer_n_head, config.indexer_top_k
        selected = index(g, layer, x_TD, narrow, heads, top_k, lambda x: g.rope(x, table, "neox"))
    parts = latent(g, here, layer, queries(g, here, layer, x_TD, narrow), x_TD)
    k_T1P = g.rms_norm(parts.k_T1P, layer["attn_k_norm"], config.norm_eps, "k_norm")
    parts = parts._replace(k_T1P=k_T1P).rotated(g, table)
    width = sum(fixed(q.shape[2]) for q in parts[:2] if q is not None)
    y_TD = folded(g, layer, parts, width**-0.5, window, selected=selected)
    return gate_heads(g, here.n_head, layer, x_TD, y_TD)


build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen, tables=tables_by_layer)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: the second layer has a window and a shape of its own, a third is left out."""
    keys: Metadata = {
        "attention.key_length": 32, "attention.head_count": [4, 2, 2], "rope.dimension_count": 8,
        "attention.sliding_window": 20, PATTERN: [0, 1], "rope.freq_base_swa": 500.0,
        "nextn_predict_layers": 1, "expert_weights_norm": True, "expert_weights_scale": 2.5,
    }  # fmt: skip
    layer: Shapes = {
        **shared_expert(), "exp_probs_b.bias": (5,),
        "attn_q_a.weight": (40, 64), "attn_q_a_norm.weight": (40,), "attn_k_norm.weight": (8,),
    }  # fmt: skip
    full = geometry(0, n_head=4, n_latent=24, n_key=20, n_value=16)
    local = geometry(1, n_head=2, n_latent=16, n_key=24, n_value=12)
    index_keys, index_tensors = sampled(0)
    full |= index_tensors
    left_out = (*DENSE_FIRST["without"], *(f"blk.{i}.attn_{x}.weight" for x in "qkv" for i in range(2)))
    top = {**DENSE_FIRST["top"], **full, **local}
    model = transformer(name, n_expert=5, layer=layer, metadata=keys | index_keys, top=top, without=left_out)
    return [replace(model, metadata={**model.metadata, f"{name}.block_count": 3})]


def geometry(index: int, n_head: int, n_latent: int, n_key: int, n_value: int) -> Shapes:
    """The tensors of a layer's attention whose shapes hang on heads and widths, 8 of a key's rotating."""
    return {
        f"blk.{index}.attn_q_b.weight": (n_head * n_key, 40),
        f"blk.{index}.attn_kv_a_mqa.weight": (n_latent + 8, 64),
        f"blk.{index}.attn_kv_a_norm.weight": (n_latent,),
        f"blk.{index}.attn_k_b.weight": (n_head, n_latent, n_key - 8),
        f"blk.{index}.attn_v_b.weight": (n_head, n_value, n_latent),
        f"blk.{index}.attn_gate.weight": (n_head, 64),
        f"blk.{index}.attn_output.weight": (64, n_head * n_value),
    }
