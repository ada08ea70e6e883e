"""MiniMax-M3, its language model: `MiniMaxM3VLForCausalLM`, and of the larger class."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, as_float32, plus_one, rows
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import ATTENTION, EXPERTS, GATED, TOP, expert_counts
from graphml_models.huggingface.glm4_moe import SHARED, SIGMOID

OLDER = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
         "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
         "index_local_blocks": "sparse_local_block"}  # fmt: skip
"""Fields, and their names in the `sparse_attention_config` of older files, which counts."""


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with an index of blocks, and experts chosen by sigmoid, whose weights sum to 1."""
    config.only("swiglu_alpha", 1.702)
    config.only("swiglu_limit", 7.0)
    older = config.get("sparse_attention_config") or {}
    if not isinstance(older, dict):
        raise config.error(f"sparse_attention_config: wanted fields of an index; got {str(older)[:60]}")
    for name, former in OLDER.items():
        if former in older:
            config.follows(name, older[former])
    metadata = decoder_keys(config, width=config.size("dense_intermediate_size"))
    index_heads, kv = config.size("index_n_heads"), int(str(metadata["attention.head_count_kv"]))
    if index_heads != kv:
        raise config.error(
            f"index_n_heads: wanted {kv}, as many as there are heads of keys; got {index_heads}"
        )
    config.ignore("hidden_act", "index_head_dim", "intermediate_size", "shared_intermediate_size")
    config.ignore("layer_types", "mlp_layer_types", "moe_layer_freq")  # as the tensors are
    return {
        **metadata,
        **rope_keys(config, metadata, 5e6),
        **expert_counts(config),
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": config.number("expert_weights_scale"),
        "attention.indexer.head_count": index_heads,
        "attention.indexer.block_size": config.size("index_block_size"),
        "attention.indexer.top_k": config.size("index_topk_blocks"),
        "attention.indexer.local_blocks": config.size("index_local_blocks"),
    }


def halves(suffix: str) -> tuple[To, To]:
    """Gates and what they let through, of one matrix."""
    return (
        To(f"blk.{{}}.ffn_gate{suffix}", rows(lambda config: (1, 2, 0, 1))),
        To(f"blk.{{}}.ffn_up{suffix}", rows(lambda config: (1, 2, 1, 2))),
    )


INDEX: Names = {
    f"layers.{{}}.self_attn.{prefix}{part}": To(f"blk.{{}}.indexer.{part}", plus_one)
    if part.endswith("norm")
    else f"blk.{{}}.indexer.{part}"
    for prefix in ("indexer.", "index_")
    for part in ("q_proj", "k_proj", "q_norm", "k_norm")
}
OF_EXPERTS: Names = {
    **EXPERTS, **SHARED, "layers.{}.mlp.shared_experts.gate_up_proj": halves("_shexp"),
    "layers.{}.mlp.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    "layers.{}.mlp.experts.{}.w1": "blk.{}.ffn_gate_exps",
    "layers.{}.mlp.experts.{}.w2": "blk.{}.ffn_down_exps",
    "layers.{}.mlp.experts.{}.w3": "blk.{}.ffn_up_exps",
}  # fmt: skip
FAMILY = Family(
    model_types=("minimax_m3_vl_text",),
    architecture="minimax-m3",
    keys=keys,
    names={
        **TOP, **ATTENTION, **GATED, **INDEX, **OF_EXPERTS,
        **{name.replace(".mlp.", ".block_sparse_moe."): place for name, place in OF_EXPERTS.items()},
        "layers.{}.mlp.gate_up_proj": halves(""),
        "norm": To("output_norm", plus_one),
        "layers.{}.input_layernorm": To("blk.{}.attn_norm", plus_one),
        "layers.{}.post_attention_layernorm": To("blk.{}.ffn_norm", plus_one),
        "layers.{}.self_attn.q_norm": To("blk.{}.attn_q_norm", plus_one),
        "layers.{}.self_attn.k_norm": To("blk.{}.attn_k_norm", plus_one),
        "layers.{}.mlp.gate": To("blk.{}.ffn_gate_inp", as_float32),
    },
)  # fmt: skip
