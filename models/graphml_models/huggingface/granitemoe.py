"""Granite 3 with experts: `GraniteMoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface import granite
from graphml_models.huggingface._names import ATTENTION, NORMS, PAIRED, TOP, expert_counts


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Granite, and the experts."""
    return {**granite.keys(config), **expert_counts(config)}


FAMILY = Family(
    model_types=("granitemoe",),
    architecture="granitemoe",
    keys=keys,
    names={
        **TOP, **ATTENTION, **PAIRED, **NORMS,
        "layers.{}.block_sparse_moe.router.layer": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.block_sparse_moe.input_linear": "blk.{}.ffn_gate_up_exps",
        "layers.{}.block_sparse_moe.output_linear": "blk.{}.ffn_down_exps",
    },
)  # fmt: skip
