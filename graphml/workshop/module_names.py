"""Names of modules of transformers' classes that are not those of their files' tensors.

From `conversion_mapping` of transformers 5.24, of model_types whose folders graphml reads: what is renamed
when a class is loaded. A folder of PEFT has the modules' names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_MOE = ((r"\.block_sparse_moe\.", ".mlp."),)
RENAMED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "exaone": (
        (r"^transformer\.wte$", "model.embed_tokens"),
        (r"^transformer\.h\.", "model.layers."),
        (r"\.attn\.attention\.", ".self_attn."),
        (r"\.self_attn\.out_proj$", ".self_attn.o_proj"),
        (r"\.mlp\.c_fc_0$", ".mlp.gate_proj"),
        (r"\.mlp\.c_fc_1$", ".mlp.up_proj"),
        (r"\.mlp\.c_proj$", ".mlp.down_proj"),
    ),
    "gpt_neox": ((r"^embed_out$", "lm_head"),),
    "hy_v3": ((r"\.mlp\.shared_mlp\.", ".mlp.shared_experts."), (r"\.mlp\.router\.gate$", ".mlp.gate")),
    "kimi_linear": (*_MOE, (r"\.self_attn\.(f_[ab]_proj)$", r".self_attn.forget_gate.\1")),
    "laguna": ((r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),),
    "minimax": _MOE,
    "minimax_m2": _MOE,
    "mixtral": _MOE,
    "nemotron_h": ((r"^backbone\.", "model."),),
    "phimoe": (*_MOE, (r"\.mlp\.gate$", ".mlp.router")),
}
"""model_type -> patterns of a tensor's name without its `.weight`, in order, and what takes their place."""
OTHER_MODULES = frozenset((
    "apertus1p5_text", "deepseek_v4", "glm5_next_text", "hrm_text", "hunyuan_vl", "hy_v4", "hy_v4_vl_text",
    "paddleocr_vl", "qwen4_exp_text", "sarvam_moe",
))  # fmt: skip
"""model_types whose tensors are cut or joined, or renamed in many ways."""


def module_name(model_type: str, tensor: str) -> str:
    """The module of a tensor's name without `.weight`."""
    for pattern, other in RENAMED.get(model_type, ()):
        tensor = re.sub(pattern, other, tensor)
    return tensor
