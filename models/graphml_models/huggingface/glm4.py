"""GLM-4 0414: `Glm4ForCausalLM`; its rope pairs neighbours, as GGUF's."""

from __future__ import annotations

from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import ATTENTION, TOP, llama_keys

FAMILY = Family(
    model_types=("glm4",),
    architecture="glm4",
    keys=llama_keys,
    names={
        **TOP, **ATTENTION,
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.post_self_attn_layernorm": "blk.{}.post_attention_norm",
        "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
        "layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
        "layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    },
    defaults={"partial_rotary_factor": 0.5},
)  # fmt: skip
