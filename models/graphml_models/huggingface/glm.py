"""GLM-4 9B: `GlmForCausalLM`; its rope pairs neighbours, as GGUF's."""

from __future__ import annotations

from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import ATTENTION, NORMS, TOP, llama_keys

FAMILY = Family(
    model_types=("glm",),
    architecture="chatglm",
    keys=llama_keys,
    names={
        **TOP, **ATTENTION, **NORMS,
        "layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
        "layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    },
    defaults={"partial_rotary_factor": 0.5},
)  # fmt: skip
