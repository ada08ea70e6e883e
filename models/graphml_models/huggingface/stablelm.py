"""StableLM: `StableLmForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import LLAMA
from graphml_models.stablelm import NORMED, PARALLEL


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, SwiGLU, rope of a part of each head; of 12B norms of heads, halves side by side."""
    config.activation("silu")
    metadata = decoder_keys(config, eps="attention.layer_norm_epsilon")
    halves = {NORMED: config.flag("qk_layernorm"), PARALLEL: config.flag("use_parallel_residual")}
    return metadata | rope_keys(config, metadata) | halves


FAMILY = Family(
    model_types=("stablelm", "stablelm_epoch"),
    architecture="stablelm",
    keys=keys,
    names={
        **LLAMA,
        "layers.{}.self_attn.q_layernorm.norms.{}": "blk.{}.attn_q_norm",
        "layers.{}.self_attn.k_layernorm.norms.{}": "blk.{}.attn_k_norm",
    },
    defaults={"hidden_act": "silu", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
)
