"""Granite with windows, sinks and experts: `GraniteMoeSWAForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface import granite_swa, granitemoe
from graphml_models.huggingface._names import expert_counts


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Granite with windows, and the experts; the shared one's tensors say its width."""
    return {**granite_swa.keys(config), **expert_counts(config)}


FAMILY = Family(
    model_types=("granitemoe_swa",),
    architecture="granite_swa",
    keys=keys,
    names={
        **granitemoe.FAMILY.names, **granite_swa.SINKS,
        "layers.{}.block_sparse_moe.router": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.block_sparse_moe.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
        "layers.{}.block_sparse_moe.experts.down_proj": "blk.{}.ffn_down_exps.weight",
        "layers.{}.shared_mlp.input_linear": "blk.{}.ffn_up_shexp",
        "layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
    },
    ignored=("shared_intermediate_size",),
)  # fmt: skip
