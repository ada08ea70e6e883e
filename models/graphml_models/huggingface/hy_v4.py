"""Hunyuan V4: `HYV4ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, as_float32, paired
from graphml.loading.huggingface.rope import rope_keys, stated_rope
from graphml_models.huggingface._names import EXPERTS, GATED, NORMS, TOP
from graphml_models.huggingface.deepseek_v3 import FAMILY as DEEPSEEK
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys

LATENT_EPS = 1e-6  # of the class, whatever rms_norm_eps is


def keys(config: HfConfig, latent_eps: float = LATENT_EPS) -> dict[str, Value]:
    """Latent attention with an index of what is seen, residual streams, and DeepSeek-V3's experts."""
    metadata = decoder_keys(config)  # head_dim and num_key_value_heads say nothing to the class
    count, rank = int(str(metadata["block_count"])), config.size("attention.kv_lora_rank")
    rotated, width = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    metadata |= rope_keys(config, {**metadata, "attention.key_length": rotated})
    if metadata["rope.dimension_count"] != rotated or stated_rope(config).get("mscale_all_dim"):
        raise config.error("rope_parameters: wanted no partial_rotary_factor and no mscale_all_dim")
    config.activation("silu")
    config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count)  # as the tensors are
    config.layered("layer_types", {"indexed_attention": True}, count)
    return {
        **metadata,
        **routing_keys(config),
        **_index_keys(config, count),
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config.size("q_lora_rank"),
        "attention.key_length": rank + rotated,
        "attention.key_length_mla": width + rotated,
        "attention.value_length": rank,
        "attention.value_length_mla": config.size("v_head_dim"),
        "attention.latent_norm_rms_epsilon": latent_eps,
        "swiglu_clamp_exp": config.cap("swiglu_limit"),
        "hyper_connection.count": config.size("hc_mult"),
        "hyper_connection.magnitude": config.number("hc_magnitude"),
        "hyper_connection.epsilon": config.number("hc_eps"),
    }


def _index_keys(config: HfConfig, count: int) -> dict[str, Value]:
    """Sizes of the index, and which layers have one."""
    types = config.layered("indexer_types", {"full": True, "shared": False}, count)
    if types is None:
        types = [i == 0 or (i - 1) % 4 == 0 for i in range(count)]
    most, heads = config.size("index_topk"), config.size("index_n_heads")
    if not most or not heads or not types[0]:
        raise config.error("index_topk, index_n_heads, indexer_types: wanted tokens, heads, and full first")
    return {
        "attention.indexer.top_k": most,
        "attention.indexer.head_count": heads,
        "attention.indexer.key_length": config.size("index_head_dim"),
        "attention.indexer.types": [int(is_full) for is_full in types],
    }


def _last(config: HfConfig, width: int) -> tuple[int, int]:
    """The last dimensions of a head rotate."""
    return width - config.size("qk_rope_head_dim"), width


HYPER: Names = {
    **{
        f"layers.{{}}.{theirs}{part}": f"blk.{{}}.hc_{block}_{part}.weight"
        for block, ours in (("attn", "attn"), ("ffn", "mlp"))
        for theirs in (f"{block}_hc.", f"hc_{ours}_layer.hc_", f"hc_pre.hc_{ours}_layer.hc_")
        for part in ("fn", "base", "scale")
    },
    **{
        f"{theirs}{part}": f"output_hc_{part}.weight"
        for theirs in (
            "hc_head.hc_",
            "hc_head.hc_head_",
            "hc_pre.hc_head.hc_head_",
            "hc_head.hc_pre.hc_head_",
        )
        for part in ("fn", "base", "scale")
    },
}
"""As transformers holds them, and as checkpoints have them."""
LINEAR_GATES: Names = {  # as transformers saves them: it takes them for those of attention
    name.replace("gate_proj", "linear_gate"): ours
    for name, ours in {**GATED, **SHARED}.items()
    if "gate_proj" in name
}
SINKS = To("blk.{}.attn_sinks.weight", as_float32)

FAMILY = Family(
    model_types=("hy_v4",),
    architecture="hy_v4",
    keys=keys,
    names={
        **TOP, **NORMS, **GATED, **EXPERTS, **SHARED, **DEEPSEEK.names, **HYPER, **LINEAR_GATES,
        "layers.{}.self_attn.q_b_proj": To("blk.{}.attn_q_b", paired("attention.head_count", _last)),
        "layers.{}.self_attn.kv_a_proj_with_mqa": To("blk.{}.attn_kv_a_mqa", paired("", _last)),
        "layers.{}.self_attn.gate_proj": "blk.{}.attn_gate",
        "layers.{}.self_attn.linear_gate": "blk.{}.attn_gate",
        "layers.{}.self_attn.sinks": SINKS,
        "layers.{}.self_attn.learnable_sink_param": SINKS,
        "layers.{}.self_attn.indexer.wq_b": To("blk.{}.indexer.attn_q_b", paired("index_n_heads", _last)),
        "layers.{}.self_attn.indexer.wk": To("blk.{}.indexer.attn_k", paired("", _last)),
        "layers.{}.self_attn.indexer.k_norm": To("blk.{}.indexer.k_norm", paired("", _last)),
        "layers.{}.self_attn.indexer.weights_proj": "blk.{}.indexer.proj",
    },
    ignored=("head_dim", "num_key_value_heads", "learnable_sink_init"),
)  # fmt: skip
