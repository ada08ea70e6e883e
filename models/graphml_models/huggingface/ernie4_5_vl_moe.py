"""The language model of ERNIE 4.5 VL, on text alone; half of the experts are of pictures."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Names, To, after, as_float32, flat, rows, transposed
from graphml_models.huggingface import ernie4_5, ernie4_5_moe
from graphml_models.huggingface._names import EXPERTS, expert_counts


def keys(config: HfConfig) -> dict[str, Value]:
    """As of ERNIE 4.5 with experts; theirs is the first of two widths, the second is of those of pictures."""
    widths = config.get("moe_intermediate_size") or [1536, 512]
    if not isinstance(widths, list) or len(widths) != 2 or type(widths[0]) is not int or widths[0] < 1:
        raise config.error(f"moe_intermediate_size: wanted two numbers above 0; got {str(widths)[:60]}")
    metadata = {**ernie4_5.keys(config), **expert_counts(config)}
    config.ignore("moe_norm_min", "moe_num_shared_experts")  # a bound of a sum; the width of the shared one
    count = int(str(metadata["block_count"]))
    kinds = config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count)
    first = 1 if kinds is None else sum(kinds)
    if kinds is not None and not all(kinds[:first]):
        raise config.error("mlp_layer_types: wanted the dense layers first")
    return {**metadata, "expert_feed_forward_length": widths[0], "leading_dense_block_count": first}


def _of_text(config: HfConfig) -> int:
    """How many experts there are, of texts."""
    return config.size("expert_count")


_FIRST = rows(lambda config: (1, 2, 0, 1))
BIAS = To("blk.{}.exp_probs_b.bias", after(_FIRST, flat, as_float32))
NAMES: Names = {
    **ernie4_5_moe.FAMILY.names,
    **{
        theirs: To(str(ours), lambda config, name, tensor: tensor, count=_of_text)
        for theirs, ours in EXPERTS.items()
        if "experts.{}" in theirs
    },
    "layers.{}.mlp.gate": To("blk.{}.ffn_gate_inp", after(transposed, as_float32)),
    "layers.{}.mlp.gate.weight_1": None,
    "layers.{}.mlp.moe_statics.e_score_correction_bias": BIAS,
}

FAMILY = replace(ernie4_5_moe.FAMILY, model_types=("ernie4_5_vl_moe_text",), keys=keys, names=NAMES)
