"""Nemotron-4 and Minitron: `NemotronForCausalLM`, whose norms multiply with 1 + weight."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, plus_one
from graphml.loading.huggingface.rope import rope_keys
from graphml.weights import Tensor
from graphml_models.huggingface._names import ATTENTION, GATED, TOP


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, squared ReLU, rope of a part of each head."""
    config.activation("relu_squared")
    metadata = decoder_keys(config, eps=LAYER_EPS, field="norm_eps")
    return metadata | rope_keys(config, metadata)


def normed(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """1 + weight; the bias as it is."""
    return plus_one(config, name, tensor) if name.endswith(".weight") else tensor


FAMILY = Family(
    model_types=("nemotron",),
    architecture="nemotron",
    keys=keys,
    names={
        **TOP, **ATTENTION, **GATED,
        "norm": To("output_norm", normed),
        "layers.{}.input_layernorm": To("blk.{}.attn_norm", normed),
        "layers.{}.post_attention_layernorm": To("blk.{}.ffn_norm", normed),
    },
    defaults={"partial_rotary_factor": 0.5},
)  # fmt: skip
