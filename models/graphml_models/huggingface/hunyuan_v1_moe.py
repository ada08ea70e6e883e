"""Hunyuan-A13B: `HunYuanMoEV1ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface import hunyuan_v1_dense
from graphml_models.huggingface._names import ATTENTION, EXPERTS, NORMS, TOP


def one_for_all(config: HfConfig, name: str) -> int:
    """A number, or a list of it for each layer."""
    configured = config.get(name)
    if isinstance(configured, list) and configured and configured == configured[:1] * len(configured):
        configured = configured[0]
    if type(configured) is not int or configured < 1:
        raise config.error(f"{name}: wanted one number above 0 for all layers; got {str(configured)[:60]!r}")
    return configured


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Hunyuan dense, with experts and a shared one in every layer."""
    config.ignore("num_shared_expert", "moe_intermediate_size")  # widths are those of the tensors
    for name in ("use_mixed_mlp_moe", "norm_topk_prob"):
        config.only(name, True)
    return {
        **hunyuan_v1_dense.keys(config),
        "expert_count": one_for_all(config, "num_experts"),
        "expert_used_count": one_for_all(config, "moe_topk"),
    }


FAMILY = Family(
    model_types=("hunyuan_v1_moe",),
    architecture="hunyuan-moe",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS, **EXPERTS, **hunyuan_v1_dense.HEAD_NORMS,
        "layers.{}.mlp.gate.wg": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.mlp.shared_mlp.gate_proj": "blk.{}.ffn_gate_shexp",
        "layers.{}.mlp.shared_mlp.up_proj": "blk.{}.ffn_up_shexp",
        "layers.{}.mlp.shared_mlp.down_proj": "blk.{}.ffn_down_shexp",
    },
)  # fmt: skip
