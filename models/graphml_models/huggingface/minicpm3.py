"""MiniCPM 3: `MiniCPM3ForCausalLM`, latent attention whose matrix of keys and values stays whole."""

from __future__ import annotations

import math

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys, stated_rope
from graphml_models.huggingface import deepseek_v3
from graphml_models.huggingface._names import GATED, NORMS, TOP


def keys(config: HfConfig) -> dict[str, Value]:
    """Latent attention, and the factors that the architecture has."""
    config.activation("silu")
    for name, wanted in (("scale_emb", 12), ("scale_depth", 1.4), ("dim_model_base", 256)):
        if config.get(name) != wanted:  # null is another number to the class
            raise config.error(f"{name}: this architecture knows {wanted} alone; got {config.get(name)!r}")
    config.only("rms_norm_eps", 1e-5, 1e-6)  # norms of the latents have 1e-6, near enough to 1e-5
    rotated = config.size("qk_rope_head_dim")
    config.follows("head_dim", rotated)  # whatever is stated
    metadata = decoder_keys(config)
    config.only("qk_head_dim", config.size("qk_nope_head_dim") + rotated)
    rope = rope_keys(config, metadata | {"attention.key_length": rotated})
    metadata |= {
        "attention.kv_lora_rank": config.size("attention.kv_lora_rank"),
        "attention.key_length": config.size("qk_nope_head_dim") + rotated,
        "attention.value_length": config.size(
            "v_head_dim", config.size("embedding_length") // config.size("attention.head_count")
        ),
    }
    if config.get("q_lora_rank") is not None:
        metadata["attention.q_lora_rank"] = config.size("q_lora_rank")
    all_dim = stated_rope(config).get("mscale_all_dim")
    if rope.get("rope.scaling.type") == "yarn" and all_dim:  # beside what yarn multiplies heads with
        stretch = max(math.log(float(str(rope["rope.scaling.factor"]))), 0.0)
        width = int(str(metadata["attention.key_length"]))
        metadata["attention.scale"] = (0.1 * all_dim * stretch + 1.0) ** 2 * width**-0.5
    return metadata | rope


FAMILY = Family(
    model_types=("minicpm3",),
    architecture="minicpm3",
    keys=keys,
    names={
        **TOP, **NORMS, **GATED,
        **{name: ours for name, ours in deepseek_v3.FAMILY.names.items() if "self_attn" in name},
        "layers.{}.self_attn.kv_b_proj": "blk.{}.attn_kv_b",
    },
    defaults={"tie_word_embeddings": True},
)  # fmt: skip
