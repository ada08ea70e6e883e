"""Ling 1 and 1.5: `BailingMoeForCausalLM` of its authors, DeepSeekMoE with q, k and v in one matrix."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, after, paired
from graphml_models.huggingface._names import EXPERTS, LLAMA, llama_keys
from graphml_models.huggingface.deepseek_v2 import SOFTMAX
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys
from graphml_models.huggingface.sarvam_moe import heads_of


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with experts by softmax; what the class can do otherwise is refused."""
    for name in ("norm_head", "norm_softmax", "multi_gate", "use_sliding_window"):
        config.only(name, False)
    config.ignore(  # windows that are off, and what is of the training
        "max_window_layers", "moe_z_loss_coef", "output_dropout", "sliding_window",
    )  # fmt: skip
    return {**llama_keys(config), **routing_keys(config, SOFTMAX, grouped=False)}


FAMILY = Family(
    model_types=("bailing_moe",),
    architecture="bailingmoe",
    keys=keys,
    names={
        **LLAMA, **EXPERTS, **SHARED,
        "word_embeddings": "token_embd",
        "layers.{}.attention.query_key_value": (
            To("blk.{}.attn_q", after(heads_of("q"), paired("attention.head_count"))),
            To("blk.{}.attn_k", after(heads_of("k"), paired("attention.head_count_kv"))),
            To("blk.{}.attn_v", heads_of("v")),
        ),
        "layers.{}.attention.dense": "blk.{}.attn_output",
    },
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
)  # fmt: skip
