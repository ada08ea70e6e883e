"""Mixtral: `MixtralForCausalLM`, llama with experts."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface._names import ATTENTION, NORMS, PAIRED, TOP, llama_keys, no_window


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, and the experts."""
    metadata = llama_keys(config)
    no_window(config, metadata)
    return {**metadata, "expert_count": config.size("expert_count"),
            "expert_used_count": config.size("expert_used_count")}  # fmt: skip


FAMILY = Family(
    model_types=("mixtral",),
    architecture="llama",
    keys=keys,
    names={
        **TOP, **ATTENTION, **PAIRED, **NORMS,
        "layers.{}.block_sparse_moe.gate": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.block_sparse_moe.experts.{}.w1": "blk.{}.ffn_gate_exps",
        "layers.{}.block_sparse_moe.experts.{}.w2": "blk.{}.ffn_down_exps",
        "layers.{}.block_sparse_moe.experts.{}.w3": "blk.{}.ffn_up_exps",
        "layers.{}.mlp.gate": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.mlp.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
        "layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps.weight",
    },
    defaults={"rope_theta": 1e6},
)  # fmt: skip
