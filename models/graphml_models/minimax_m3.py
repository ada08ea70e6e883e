"""MiniMax-M3 (MiniMax 2026): sparse attention to blocks of the text, shared experts, gpt-oss's gates.

In layers with an index each group of heads attends to the blocks that hold the positions that its index head
scores highest, and to the last ones. T tokens, D model width, N heads, G of the index, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _routing, llama
from graphml_models._attention import norm_heads, rotate, rotated_heads
from graphml_models._ffn import gated_ffn
from graphml_models._index import INDEX
from graphml_models._routing import Routing, choose
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, Shapes, shared_expert, transformer
from graphml_models.gpt_oss import swiglu_oai


@dataclass(frozen=True)
class Config(_routing.Config):
    """And of the index: heads, positions of a block, how many blocks are chosen and how many are the last."""

    indexer_n_head: int
    block_size: int
    n_block: int
    n_local: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        block_size, n_block = keys.integer(f"{INDEX}.block_size"), keys.integer(f"{INDEX}.top_k")
        if block_size < 1:
            raise keys.unsupported(f"{INDEX}.block_size", "at least 1")
        if n_block < 1:
            raise keys.unsupported(f"{INDEX}.top_k", "at least 1")
        return cls(
            **vars(known),
            routing=Routing.read(keys),
            indexer_n_head=keys.integer(f"{INDEX}.head_count"),
            block_size=block_size,
            n_block=min(n_block, -(-known.n_ctx // block_size)),
            n_local=keys.integer(f"{INDEX}.local_blocks"),
        )


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox", norm_heads)
    selected = None
    if layer.get("indexer.q_proj"):
        selected = blocks(g, config, layer, table, x_TD)
    return g.attend(
        q_TNH, k_TKH, v_TKH, layer.index, config.scale, selected=selected, selection_block=config.block_size
    )


def blocks(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """The blocks that each group of heads attends to, [T, G, blocks]."""
    q_TGH = g.heads(layer.linear(x_TD, "indexer.q_proj", "index_q"), config.indexer_n_head)
    k_T1H = g.heads(layer.linear(x_TD, "indexer.k_proj", "index_k"), 1)
    q_TGH = g.rms_norm(q_TGH, layer["indexer.q_norm"], config.norm_eps, "index_q_norm")
    k_T1H = g.rms_norm(k_T1H, layer["indexer.k_norm"], config.norm_eps, "index_k_norm")
    q_TGH, k_T1H = rotate(g, table, "neox", q_TGH, k_T1H)
    return g.select(q_TGH, k_T1H, layer.index, config.n_block, config.block_size, config.n_local)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Gated feed-forward, or experts beside a shared one, [T, D]."""
    if layer.get("ffn_gate_inp") is None:
        return gated_ffn(g, layer, x_TD, product=swiglu_oai)
    chosen = choose(g, config.routing, layer, x_TD)
    chosen_TD = chosen.combine(chosen.gated(x_TD, swiglu_oai))
    return g.add(chosen_TD, gated_ffn(g, layer, x_TD, suffix="_shexp", product=swiglu_oai), "experts")


build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests that chooses 3 of up to 9 blocks of a text, the last among them."""
    keys = {
        f"{INDEX}.head_count": 2, f"{INDEX}.block_size": 8, f"{INDEX}.top_k": 3, f"{INDEX}.local_blocks": 1,
        "expert_gating_func": 2, "expert_weights_scale": 2.0, "rope.dimension_count": 8,
    }  # fmt: skip
    layer = {**shared_expert(), **HEAD_NORMS, "exp_probs_b.bias": (5,)}
    index: Shapes = {"q_proj": (32, 64), "k_proj": (16, 64), "q_norm": (16,), "k_norm": (16,)}
    top = DENSE_FIRST["top"] | {f"blk.1.indexer.{part}.weight": shape for part, shape in index.items()}
    return [transformer(name, n_expert=5, layer=layer, metadata=keys, top=top,
                        without=DENSE_FIRST["without"])]  # fmt: skip
