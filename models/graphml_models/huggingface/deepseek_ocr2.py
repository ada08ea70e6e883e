"""DeepSeek-OCR 2, its language model: of `DeepseekOcr2ForConditionalGeneration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import EXPERTS, LLAMA
from graphml_models.huggingface.deepseek_v2 import SOFTMAX
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with experts by softmax in some layers, whose weights are not normalised."""
    config.activation("silu")
    config.only("topk_method", "greedy")
    config.ignore("n_group", "topk_group")  # of the other method
    metadata = decoder_keys(config)
    width = int(str(metadata["embedding_length"])) // int(str(metadata["attention.head_count"]))
    metadata |= {"attention.key_length": width, "attention.value_length": width}  # whatever head_dim says
    routing = routing_keys(config, SOFTMAX, grouped=False)
    kinds = {"dense": True, "sparse": False}  # as the tensors are
    config.layered("mlp_layer_types", kinds, int(str(metadata["block_count"])))
    return {**metadata, **rope_keys(config, metadata), **routing, "expert_weights_norm": False}


def claims(config: Mapping[str, Any]) -> str | None:
    """DeepSeek-OCR and the small DeepSeek-VL2: DeepSeek-V2 without latent attention."""
    is_its = is_without_latents(config) and config.get("sliding_window") is None
    return "deepseek_ocr2_text" if is_its else None


def is_without_latents(config: Mapping[str, Any]) -> bool:
    """Whether it is a config of DeepSeek-V2 that says it has no latent attention."""
    return config.get("use_mla") is False and config.get("model_type") in (None, "deepseek_v2")


FAMILY = Family(
    model_types=("deepseek_ocr2_text",),
    architecture="deepseek2-ocr",
    keys=keys,
    names={**LLAMA, **EXPERTS, **SHARED},
    claims=claims,
)
