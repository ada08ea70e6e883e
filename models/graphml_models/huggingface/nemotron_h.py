"""Nemotron-H and Nemotron 3: `NemotronHForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, as_float32, column
from graphml_models.huggingface import mamba
from graphml_models.huggingface.glm4_moe import routing_keys
from graphml_models.huggingface.mamba2 import grouped

MAMBA, ATTENTION, EXPERTS, MLP = "linear_attention", "full_attention", "moe", "mlp"
KINDS = {kind: kind for kind in (MAMBA, ATTENTION, EXPERTS, MLP)} | {"mamba": MAMBA, "attention": ATTENTION}
OF_EXPERTS = ("moe_intermediate_size", "moe_shared_expert_intermediate_size", "n_group", "n_routed_experts",
              "norm_topk_prob", "num_experts_per_tok", "num_local_experts", "routed_scaling_factor",
              "topk_group")  # fmt: skip
"""Fields without influence where no layer has experts."""
LETTERS = {"M": MAMBA, "*": ATTENTION, "E": EXPERTS, "-": MLP}


def keys(config: HfConfig) -> dict[str, Value]:
    """Layers of four kinds; dt of Mamba 2 is at least `time_step_min`, whatever `time_step_limit` says."""
    config.only("mlp_hidden_act", "relu2")
    config.only("mamba_hidden_act", "silu", "swish")
    kinds = _kinds(config)
    config.follows("num_hidden_layers", len(kinds))
    metadata = decoder_keys(config, field="layer_norm_epsilon", width=0)
    heads, kv = (int(str(metadata[f"attention.head_count{kind}"])) for kind in ("", "_kv"))
    widths = {MLP: config.size("feed_forward_length")}
    routing: dict[str, Value] = {}
    if EXPERTS in kinds:
        routing = routing_keys(config)
        widths[EXPERTS] = config.size("moe_shared_expert_intermediate_size") or widths[MLP]
    return {
        **metadata,
        **routing,
        "attention.head_count": [heads if kind == ATTENTION else 0 for kind in kinds],
        "attention.head_count_kv": [kv if kind == ATTENTION else 0 for kind in kinds],
        "feed_forward_length": [widths.get(kind, 0) for kind in kinds],
        "ssm.conv_kernel": config.size("ssm.conv_kernel"),
        "ssm.inner_size": config.size("mamba_num_heads") * config.size("mamba_head_dim"),
        "ssm.state_size": config.size("ssm_state_size"),
        "ssm.time_step_rank": config.size("mamba_num_heads"),
        "ssm.time_step_min": config.number("ssm.time_step_min"),
        "ssm.group_count": config.size("ssm.group_count"),
    }


def _kinds(config: HfConfig) -> list[str]:
    """The kind of each layer, by words or, as older files have it, by letters."""
    words, other = config.get("layers_block_type"), config.get("layer_types")
    if None not in (words, other) and words != other:
        raise config.error("layers_block_type and layer_types: wanted one list")
    listed, known = (other if words is None else words), KINDS
    if listed is None:
        listed, known = config.get("hybrid_override_pattern"), LETTERS
    if listed is None:
        return [MAMBA, EXPERTS, ATTENTION, MLP]
    kinds = listed if isinstance(listed, list | str) else []
    if not kinds or any(not isinstance(kind, str) or kind not in known for kind in kinds):
        raise config.error(f"layers_block_type: wanted {', '.join(known)}; got {str(listed)[:80]}")
    return [known[kind] for kind in kinds]


FEED_FORWARD: Names = {
    "layers.{}.mixer.up_proj": "blk.{}.ffn_up",
    "layers.{}.mixer.down_proj": "blk.{}.ffn_down",
    "layers.{}.mixer.gate": To("blk.{}.ffn_gate_inp", as_float32),
    "layers.{}.mixer.gate.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    "layers.{}.mixer.experts.{}.up_proj": "blk.{}.ffn_up_exps",
    "layers.{}.mixer.experts.{}.down_proj": "blk.{}.ffn_down_exps",
    "layers.{}.mixer.experts.up_proj": "blk.{}.ffn_up_exps.weight",
    "layers.{}.mixer.experts.down_proj": "blk.{}.ffn_down_exps.weight",
    "layers.{}.mixer.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
    "layers.{}.mixer.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
    "layers.{}.mixer.fc1_latent_proj": "blk.{}.ffn_latent_down",
    "layers.{}.mixer.fc2_latent_proj": "blk.{}.ffn_latent_up",
}
FAMILY = Family(
    model_types=("nemotron_h",),
    architecture="nemotron_h",
    keys=keys,
    names={
        **mamba.NAMES, **FEED_FORWARD,
        "layers.{}.mixer.D": To("blk.{}.ssm_d", column),
        "layers.{}.mixer.dt_bias": "blk.{}.ssm_dt.bias",
        "layers.{}.mixer.norm": To("blk.{}.ssm_norm", lambda c, n, t: grouped(c, n, t, "ssm.group_count")),
        "layers.{}.mixer.q_proj": "blk.{}.attn_q",
        "layers.{}.mixer.k_proj": "blk.{}.attn_k",
        "layers.{}.mixer.v_proj": "blk.{}.attn_v",
        "layers.{}.mixer.o_proj": "blk.{}.attn_output",
    },
    ignored=(
        *OF_EXPERTS, "chunk_size", "expand", "mamba_chunk_size", "mamba_conv_bias", "mamba_dt_init_floor",
        "mamba_dt_limit", "mamba_dt_max", "mamba_expand", "moe_latent_size", "mtp_layers_block_type",
        "num_logits_to_keep", "num_nextn_predict_layers", "time_step_floor", "time_step_limit",
        "time_step_max", "use_conv_bias", "use_mamba_kernels",
    ),
)  # fmt: skip
