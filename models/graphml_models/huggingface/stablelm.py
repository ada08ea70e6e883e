"""StableLM: `StableLmForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import LLAMA


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, SwiGLU, rope of a part of each head; norms of heads and parallel blocks are refused."""
    config.activation("silu")
    config.only("qk_layernorm", False)
    config.only("use_parallel_residual", False)
    metadata = decoder_keys(config, eps="attention.layer_norm_epsilon")
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("stablelm", "stablelm_epoch"),
    architecture="stablelm",
    keys=keys,
    names=LLAMA,
    defaults={"hidden_act": "silu", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
)
