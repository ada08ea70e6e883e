"""Falcon-H1: `FalconH1ForCausalLM`, whose many factors become part of the matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Change, Family, To, calculated
from graphml.loading.huggingface.rope import rope_keys
from graphml.weights import Tensor
from graphml_models.huggingface.mamba2 import MIXER, check_time_steps


def keys(config: HfConfig) -> dict[str, Value]:
    """Attention and Mamba 2 in every layer, without biases of projections."""
    config.activation("silu")
    for name in ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"):
        config.only(name, False)
    if config.flag("mamba_rms_norm"):
        config.only("mamba_norm_before_gate", False)
    config.ignore("mamba_norm_before_gate")
    check_time_steps(config)
    metadata = decoder_keys(config)
    inner = config.size("mamba_d_ssm", config.size("mamba_expand") * config.size("embedding_length"))
    width = config.get("mamba_d_head")
    if width not in (None, "auto") and config.size("mamba_d_head") * config.size("mamba_n_heads") != inner:
        raise config.error("mamba_n_heads, mamba_d_head: wanted heads that fill mamba_d_ssm")
    if config.flag("tie_word_embeddings") and factor("embedding")(config) != factor("lm_head")(config):
        raise config.error("tie_word_embeddings: wanted one factor for the embedding and the logits")
    metadata |= rope_keys(config, metadata)
    if any(tensor_name.startswith("rope_f") for tensor_name in config.tensors):
        raise config.error("rope_parameters: wanted no factors of its frequencies")
    return {
        **metadata,
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.inner_size": inner,
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.time_step_rank": config.size("mamba_n_heads"),
        "ssm.group_count": config.size("mamba_n_groups"),
    }


def factor(*names: str) -> Callable[[HfConfig], float]:
    """The product of several multipliers, each 1 where the config lacks it."""
    return lambda config: float(np.prod([config.number(f"{name}_multiplier", 1.0) for name in names]))


def listed(config: HfConfig, name: str, count: int) -> list[float]:
    """A list of multipliers, all 1 where the config lacks it."""
    multipliers = config.get(name)
    multipliers = [1.0] * count if multipliers is None else multipliers
    if not isinstance(multipliers, list) or len(multipliers) != count:
        raise config.error(f"{name}: wanted {count} numbers; got {str(multipliers)[:60]}")
    return [config.checked_number(name, multiplier) for multiplier in multipliers]


def times(value: Callable[[HfConfig], float]) -> Change:
    """A matrix times a number."""

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        number = np.float32(value(config))
        return tensor if number == 1.0 else calculated(tensor, name, lambda values: values * number)

    return change


def inputs(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """The rows for gate, x, B, C and dt, each times its own number."""
    inner = config.size("mamba_d_ssm", config.size("mamba_expand") * config.size("embedding_length"))
    shared, heads = config.size("mamba_n_groups") * config.size("mamba_d_state"), config.size("mamba_n_heads")
    sizes = [inner, inner, shared, shared, heads]
    if tensor.shape[0] != sum(sizes):
        raise config.error(f"{name}: wanted {sum(sizes)} rows; got {tensor.shape[0]}")
    numbers = np.array(listed(config, "ssm_multipliers", 5)) * factor("ssm_in")(config)
    rows = np.repeat(numbers, sizes).astype(np.float32)[:, None]
    return calculated(tensor, name, lambda values: values * rows)


FAMILY = Family(
    model_types=("falcon_h1",),
    architecture="falcon-h1",
    keys=keys,
    names={
        "embed_tokens": To("token_embd", times(factor("embedding"))),
        "final_layernorm": "output_norm",
        "lm_head": To("output", times(factor("lm_head"))),
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.pre_ff_layernorm": "blk.{}.ffn_norm",
        "layers.{}.self_attn.q_proj": To("blk.{}.attn_q", times(factor("attention_in"))),
        "layers.{}.self_attn.k_proj": To("blk.{}.attn_k", times(factor("attention_in", "key"))),
        "layers.{}.self_attn.v_proj": To("blk.{}.attn_v", times(factor("attention_in"))),
        "layers.{}.self_attn.o_proj": To("blk.{}.attn_output", times(factor("attention_out"))),
        "layers.{}.mamba.in_proj": To("blk.{}.ssm_in", inputs),
        **MIXER,
        "layers.{}.mamba.out_proj": To("blk.{}.ssm_out", times(factor("ssm_out"))),
        "layers.{}.feed_forward.gate_proj": To(
            "blk.{}.ffn_gate", times(lambda c: listed(c, "mlp_multipliers", 2)[0])
        ),
        "layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
        "layers.{}.feed_forward.down_proj": To(
            "blk.{}.ffn_down", times(lambda c: listed(c, "mlp_multipliers", 2)[1])
        ),
    },
    ignored=("mamba_chunk_size", "mamba_conv_bias", "num_logits_to_keep", "ssm_multipliers",
             "mlp_multipliers", *(f"{name}_multiplier" for name in (
                 "embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out"))),
)  # fmt: skip
