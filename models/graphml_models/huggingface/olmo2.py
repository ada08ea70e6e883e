"""OLMo 2: `Olmo2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import ATTENTION, GATED, HEAD_NORMS, TOP, llama_keys

NAMES = {
    **TOP, **ATTENTION, **GATED, **HEAD_NORMS,
    "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}  # fmt: skip


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama."""
    return llama_keys(config)


FAMILY = Family(
    model_types=("olmo2",),
    architecture="olmo2",
    keys=keys,
    names=NAMES,
)
