"""DeepSeek-V3.2: `DeepseekV32ForCausalLM`, DeepSeek-V3 whose tokens see those that an index chooses."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import deepseek_v3
from graphml_models.huggingface.glm4_moe import routing_keys

INDEXED = "indexed_attention"


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-V3, with an index; a list of kinds may say how many first layers are dense."""
    config.only("rms_norm_eps", 1e-5, 1e-6)  # norms of the latents have 1e-6, near enough to 1e-5
    config.follows("head_dim", config.size("qk_rope_head_dim"))  # whatever is stated
    metadata = {**deepseek_v3.latent_keys(config), **routing_keys(config)}
    count = int(str(metadata["block_count"]))
    config.layered("layer_types", {INDEXED: True}, count)
    routed = config.layered("mlp_layer_types", {"dense": False, "sparse": True}, count)
    n_dense = metadata["leading_dense_block_count"] if routed is None else routed.count(False)
    if routed is not None and routed != [i >= int(str(n_dense)) for i in range(count)]:
        raise config.error("mlp_layer_types: wanted dense layers before sparse ones")
    return metadata | {
        "leading_dense_block_count": n_dense,
        "attention.q_lora_rank": config.size("q_lora_rank"),
        "attention.indexer.head_count": config.size("index_n_heads"),
        "attention.indexer.key_length": config.size("index_head_dim"),
        "attention.indexer.top_k": config.size("index_topk"),
    }


FAMILY = replace(
    deepseek_v3.FAMILY,
    model_types=("deepseek_v32",),
    architecture="deepseek32",
    keys=keys,
    names={
        **deepseek_v3.FAMILY.names,
        "layers.{}.self_attn.indexer.wq_b": "blk.{}.indexer.attn_q_b",
        "layers.{}.self_attn.indexer.wk": "blk.{}.indexer.attn_k",
        "layers.{}.self_attn.indexer.k_norm": "blk.{}.indexer.k_norm",
        "layers.{}.self_attn.indexer.weights_proj": "blk.{}.indexer.proj",
    },
)  # fmt: skip
