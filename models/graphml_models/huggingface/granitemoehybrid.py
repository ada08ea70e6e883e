"""Granite 4: `GraniteMoeHybridForCausalLM`, with experts or without."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names, To, paired, rows
from graphml.loading.huggingface.rope import PART, PART_OF_ROPE, stated_rope
from graphml_models.huggingface import granite, granitemoe
from graphml_models.huggingface.mamba2 import MIXER, check_time_steps

SHARED: Names = {
    "layers.{}.shared_mlp.input_linear": (
        To("blk.{}.ffn_gate_shexp", rows(lambda c: (1, 2, 0, 1))),
        To("blk.{}.ffn_up_shexp", rows(lambda c: (1, 2, 1, 2))),
    ),
    "layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
}
KINDS = {"mamba": False, "linear_attention": False, "attention": True, "full_attention": True}


def _turning(config: HfConfig, width: int) -> tuple[int, int]:
    """The first dimensions of a head rotate: a part of them in Bamba."""
    if config.of_file:
        return 0, config.size("rope.dimension_count")
    part = stated_rope(config).get(PART, config.get(PART)) if config.is_read(PART_OF_ROPE) else None
    return 0, width if part is None else int(width * config.checked_number(PART, part))


PAIRED: Names = {
    "layers.{}.self_attn.q_proj": To("blk.{}.attn_q", paired("attention.head_count", _turning)),
    "layers.{}.self_attn.k_proj": To("blk.{}.attn_k", paired("attention.head_count_kv", _turning)),
}
"""Bamba's too: adapters of the graph know one meaning of a name."""


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Granite, with Mamba 2 in layers that have no heads of keys; experts where there are any."""
    config.only("normalization_function", "rmsnorm")
    config.only("position_embedding_type", "rope", "nope")
    positions = config.get("position_embedding_type") == "rope"
    metadata = granite.keys(config)
    count, kv = int(str(metadata["block_count"])), int(str(metadata["attention.head_count_kv"]))
    attends = config.layered("layer_types", KINDS, count) or config.layered("layers_block_type", KINDS, count)
    if attends is None:
        raise config.error("layer_types: wanted a list, which says what layers have attention")
    experts = config.size("expert_count")
    used = config.size("expert_used_count")
    return {
        **metadata,
        "attention.head_count_kv": [kv if has_attention else 0 for has_attention in attends],
        "rope.scaling.finetuned": positions,
        **ssm_keys(config),
        **({"expert_count": experts, "expert_used_count": used} if experts else {}),
    }


def ssm_keys(config: HfConfig) -> dict[str, Value]:
    """Sizes of Mamba 2 beside attention; dt must not be clamped."""
    config.only("mamba_proj_bias", False)
    check_time_steps(config)
    heads = config.size("mamba_n_heads")
    inner = config.size("mamba_expand") * config.size("embedding_length")
    width = config.get("mamba_d_head")
    if width not in (None, "auto") and config.size("mamba_d_head") * heads != inner:
        raise config.error("mamba_n_heads, mamba_d_head: wanted heads that fill mamba_expand * hidden_size")
    return {
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.inner_size": inner,
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.time_step_rank": heads,
        "ssm.group_count": config.size("mamba_n_groups"),
    }


FAMILY = Family(
    model_types=("granitemoehybrid",),
    architecture="granitehybrid",
    keys=keys,
    names={
        **granitemoe.FAMILY.names, **PAIRED, **SHARED,
        "layers.{}.mamba.in_proj": "blk.{}.ssm_in",
        **MIXER,
        "layers.{}.mamba.out_proj": "blk.{}.ssm_out",
    },
    ignored=("mamba_chunk_size", "mamba_conv_bias", "shared_intermediate_size"),
)  # fmt: skip
