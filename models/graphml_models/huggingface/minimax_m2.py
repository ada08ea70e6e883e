"""MiniMax-M2: `MiniMaxM2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import PART
from graphml_models.huggingface import mixtral
from graphml_models.huggingface._names import ATTENTION, HEAD_NORMS, llama_keys

SIGMOID = 2  # GGUF's number


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with experts chosen by sigmoid; layers that predict further tokens are left out."""
    config.only("scoring_func", "sigmoid")
    config.only("use_routing_bias", True)
    config.only("use_qk_norm", True)
    config.only("qk_norm_type", "per_layer")
    config.only("shared_intermediate_size", 0)
    config.ignore("use_mtp", "num_mtp_modules", "mtp_transformer_layers")
    width = config.get("rotary_dim")
    if width is not None and config.stated(PART) is None:
        config.follows(PART, config.size("rotary_dim") / max(config.size("attention.key_length"), 1))
    metadata = llama_keys(config)
    config.layered("attn_type_list", {1: True}, int(str(metadata["block_count"])))
    counts = {key: config.size(key) for key in ("expert_count", "expert_used_count")}
    return {**metadata, **counts, "expert_gating_func": SIGMOID, "expert_weights_norm": True}


FAMILY = Family(
    model_types=("minimax_m2",),
    architecture="minimax-m2",
    keys=keys,
    names={
        **mixtral.FAMILY.names, **ATTENTION, **HEAD_NORMS,
        "layers.{}.block_sparse_moe.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
        "layers.{}.mlp.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    },
    defaults={"rope_theta": 5e6},
)  # fmt: skip
