"""gpt-oss: `GptOssForCausalLM`, its experts as floats or in MXFP4."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Change, Family, To, as_float32
from graphml.loading.huggingface.rope import required_rope
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml_models.huggingface._names import ATTENTION, TOP, expert_keys, llama_keys, windows

FLOATS: Mapping[str, type[np.uint16] | type[np.uint32]] = {
    "f32": np.uint32, "f16": np.uint16, "bf16": np.uint16,
}  # fmt: skip
BOUNDS = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}  # of the activation


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with windows, sinks, and experts whose width is that of the feed-forward."""
    for name, bound in BOUNDS.items():
        config.only(name, bound)
    required_rope(config)
    metadata = llama_keys(config)
    experts = expert_keys(config, width="feed_forward_length")
    return {**metadata, **experts, **windows(config, metadata, period=2)}


def outputs(part: int | None) -> Change:
    """Matrices of experts as [experts, out, in]; part: of gates (0) and what they let through (1), in turns.

    Floats are stored as [experts, in, out]; MXFP4 is as we have it.
    """
    chosen = slice(None) if part is None else slice(part, None, 2)

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        kind = FLOATS.get(tensor.dtype, np.uint8)
        turned = len(tensor.shape) == 3 and tensor.dtype in FLOATS
        experts, rows, *inputs = (tensor.shape[i] for i in (0, 2, 1)) if turned else tensor.shape

        def compute() -> NDArray[np.uint8]:
            numbers = tensor.data.view(kind)
            stored = (
                numbers.reshape(tensor.shape).swapaxes(1, 2) if turned else numbers.reshape(experts, rows, -1)
            )
            return np.ascontiguousarray(stored[:, chosen]).reshape(-1).view(np.uint8)

        return DeferredTensor.of(name, tensor.dtype, (experts, len(range(rows)[chosen]), *inputs), compute)

    return change


FAMILY = Family(
    model_types=("gpt_oss",),
    architecture="gpt-oss",
    keys=keys,
    names={
        **TOP, **ATTENTION,
        "layers.{}.self_attn.sinks": To("blk.{}.attn_sinks.weight", as_float32),
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
        "layers.{}.mlp.router": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.mlp.experts.gate_up_proj": (
            To("blk.{}.ffn_gate_exps.weight", outputs(0)), To("blk.{}.ffn_up_exps.weight", outputs(1)),
        ),
        "layers.{}.mlp.experts.gate_up_proj_bias": (
            To("blk.{}.ffn_gate_exps.bias", outputs(0)), To("blk.{}.ffn_up_exps.bias", outputs(1)),
        ),
        "layers.{}.mlp.experts.down_proj": To("blk.{}.ffn_down_exps.weight", outputs(None)),
        "layers.{}.mlp.experts.down_proj_bias": To("blk.{}.ffn_down_exps.bias", outputs(None)),
    },
    defaults={"hidden_act": "silu", "rope_theta": 150000.0},
)  # fmt: skip
