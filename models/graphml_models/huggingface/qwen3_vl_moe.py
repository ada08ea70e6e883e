"""The language model of Qwen3-VL with experts, on text alone: Qwen 3 with experts."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig
from graphml.loading.huggingface.family import Change, To
from graphml.weights import Tensor
from graphml_models.huggingface import qwen3_moe
from graphml_models.huggingface.gpt_oss import outputs


def either(rows: int) -> Change:
    """Matrices of experts as [experts, out, in], as which they or their transposed ones are stored.

    rows: of an expert's outputs, how many times its width; 0 for that of the model.
    """

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        width, n_embd = config.size("expert_feed_forward_length"), config.size("embedding_length")
        shape = (rows * width, n_embd) if rows else (n_embd, width)
        if shape[0] == shape[1]:
            raise config.error(f"{name}: wanted matrices whose shape says which side is the output")
        return tensor if tensor.shape[1:] == shape else outputs(None)(config, name, tensor)

    return change


FAMILY = replace(
    qwen3_moe.FAMILY,
    model_types=("qwen3_vl_moe_text",),
    architecture="qwen3vlmoe",
    defaults={**qwen3_moe.FAMILY.defaults, "rope_theta": 5e5},
    names={
        **qwen3_moe.FAMILY.names,
        "layers.{}.mlp.experts.gate_up_proj": To("blk.{}.ffn_gate_up_exps.weight", either(2)),
        "layers.{}.mlp.experts.down_proj": To("blk.{}.ffn_down_exps.weight", either(0)),
    },
)
