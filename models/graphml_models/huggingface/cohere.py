"""Command R: `CohereForCausalLM`; its rope pairs neighbours, as GGUF's."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import ATTENTION, GATED, HEAD_NORMS, TOP

NAMES: Names = {**TOP, **ATTENTION, **GATED, **HEAD_NORMS, "layers.{}.input_layernorm": "blk.{}.attn_norm"}


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms without biases, SwiGLU beside attention, a factor of the logits."""
    config.activation("silu")
    config.flag("use_qk_norm")  # the norms are there or not
    metadata = decoder_keys(config, eps=LAYER_EPS)
    return {**metadata, **rope_keys(config, metadata), "logit_scale": config.number("logit_scale")}


FAMILY = Family(
    model_types=("cohere",), architecture="command-r", keys=keys, names=NAMES, defaults={"rope_theta": 5e5}
)
