"""Phi-3.5-MoE: `PhimoeForCausalLM`.

Texts longer than the context before the scaling have LongRoPE's long factors, as in the model's own code and
in llama.cpp; the class of transformers 5 has the short ones for them, too.
"""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys, stated_rope
from graphml_models.huggingface import mixtral
from graphml_models.huggingface._names import ATTENTION, expert_counts, no_window


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with layer norms and the routing of SparseMixer."""
    config.activation("silu")
    config.only("num_experts_per_tok", 2)
    metadata = decoder_keys(config)
    no_window(config, metadata)
    jitter = config.number("router_jitter_noise")
    if jitter < 0:
        raise config.error(f"router_jitter_noise: wanted a number from 0 up; got {jitter}")
    config.ignore("input_jitter_noise", "lm_head_bias")
    return {
        **metadata, **expert_counts(config), "expert_router_jitter": jitter, **_rope(config, metadata)
    }  # fmt: skip


def _rope(config: HfConfig, metadata: dict[str, Value]) -> dict[str, Value]:
    """LongRoPE whose magnitude is stated, once for short and once for long texts."""
    magnitudes = [stated_rope(config).get(f"{kind}_mscale") for kind in ("short", "long")]
    rope = rope_keys(config, metadata, 1e6, known=("short_mscale", "long_mscale"))
    if "rope.scaling.type" not in rope:
        return rope
    if rope["rope.scaling.type"] != "longrope" or magnitudes[0] != magnitudes[1]:
        raise config.error(f"rope: wanted longrope with short_mscale and long_mscale alike; got {magnitudes}")
    return {**rope, "rope.scaling.attn_factor": config.checked_number("short_mscale", magnitudes[0])}


FAMILY = Family(
    model_types=("phimoe",),
    architecture="phimoe",
    keys=keys,
    names={
        **mixtral.FAMILY.names, **ATTENTION,
        "layers.{}.mlp.router": mixtral.FAMILY.names["layers.{}.mlp.gate"],
    },
)  # fmt: skip
