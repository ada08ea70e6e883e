"""SmolLM3 (Hugging Face 2025): llama of which every fourth layer has no positions (arXiv:2501.18795)."""

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import llama
from graphml_models._attention import rotated_heads
from graphml_models._samples import transformer
from graphml_models._windows import FolderConfig as Config


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    rope = table if (layer.index + 1) % 4 else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "norm")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])


feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_layer=4, tied=True)]
