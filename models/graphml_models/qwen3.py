"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): llama with a norm on each head of q and k, rope of halves."""

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import llama
from graphml_models._attention import norm_heads, project, rotate
from graphml_models._config import Config as Config
from graphml_models._samples import HEAD_NORMS, transformer


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    q_TNH, k_TKH = norm_heads(g, config, layer, q_TNH, k_TKH)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


build = partial(llama.build, attention=attention)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_head_kv=1, layer=HEAD_NORMS, tied=True)]
