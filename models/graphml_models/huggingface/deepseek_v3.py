"""DeepSeek-V3, R1 and Kimi K2: `DeepseekV3ForCausalLM`; its rope pairs neighbours, as GGUF's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Change, Family, To
from graphml.loading.huggingface.rope import rope_keys, stated_rope
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml_models.huggingface._names import EXPERTS, GATED, NORMS, TOP
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """Latent attention and experts."""
    config.only("topk_method", "noaux_tc")
    config.only("scoring_func", "sigmoid")
    config.only("rms_norm_eps", 1e-5, 1e-6)  # norms of the latents have 1e-6, near enough to 1e-5
    return {**latent_keys(config), **routing_keys(config)}


def latent_keys(config: HfConfig) -> dict[str, Value]:
    """Latent attention: one head of keys, the latent and its rotated part."""
    config.activation("silu")
    config.only("rope_interleave", True)
    config.only("moe_layer_freq", 1)
    config.ignore("num_nextn_predict_layers", "qk_head_dim")
    metadata = decoder_keys(config)
    rank, rotated = config.size("attention.kv_lora_rank"), config.size("qk_rope_head_dim")
    config.only("head_dim", rotated)
    metadata |= {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rotated,  # what rope turns
        "attention.key_length_mla": config.size("qk_nope_head_dim") + rotated,
        "attention.value_length": rank,
        "attention.value_length_mla": config.size("v_head_dim"),
    }
    if config.get("q_lora_rank") is not None:
        metadata["attention.q_lora_rank"] = config.size("q_lora_rank")
    metadata |= rope_keys(config, metadata)
    return metadata | {"attention.key_length": rank + rotated, **_magnitude(config, metadata)}


def _magnitude(config: HfConfig, metadata: dict[str, Value]) -> dict[str, Value]:
    """Of yarn: heads are not multiplied, scores are, by a square that GGUF has a tenth of."""
    rope = stated_rope(config)
    if rope.get("truncate", True) is not True:
        raise config.error("rope truncate is false: latent attention knows yarn with rounded bounds")
    if metadata.get("rope.scaling.type") != "yarn":
        return {}
    all_dim, own = rope.get("mscale_all_dim"), rope.get("mscale")
    if not all_dim or all_dim != own or rope.get("attention_factor") is not None:
        raise config.error(f"rope: wanted mscale and mscale_all_dim, the same; got {own!r} and {all_dim!r}")
    return {"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.1 * all_dim}


class LatentSizes(NamedTuple):
    """Of latent attention: heads, widths of the parts of keys without positions and of values, latent."""

    n_head: int
    nope: int
    wide: int
    rank: int


def sizes_of_all(config: HfConfig, name: str) -> LatentSizes:
    """Those of every layer."""
    n_head, nope = config.size("attention.head_count"), config.size("qk_nope_head_dim")
    return LatentSizes(n_head, nope, config.size("v_head_dim"), config.size("attention.kv_lora_rank"))


def half(keys_of_heads: bool, sizes: Callable[[HfConfig, str], LatentSizes] = sizes_of_all) -> Change:
    """Of each head's rows [nope + v, rank] the keys, transposed [N, rank, nope], or the values.

    sizes: by our name of the tensor.
    """

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        n_head, nope, wide, rank = sizes(config, name)
        if tensor.shape != (n_head * (nope + wide), rank):
            raise config.error(f"{name}: wanted [{n_head * (nope + wide)}, {rank}]; got {list(tensor.shape)}")

        def compute() -> NDArray[np.uint8]:
            parts = tensor.numpy().reshape(n_head, nope + wide, rank)
            chosen = parts[:, :nope].swapaxes(1, 2) if keys_of_heads else parts[:, nope:]
            return np.ascontiguousarray(chosen, np.float32).reshape(-1).view(np.uint8)

        shape = (n_head, rank, nope) if keys_of_heads else (n_head, wide, rank)
        return DeferredTensor.of(name, "f32", shape, compute)

    return change


FAMILY = Family(
    model_types=("deepseek_v3",),
    architecture="deepseek2",
    keys=keys,
    names={
        **TOP, **NORMS, **GATED, **EXPERTS, **SHARED,
        "layers.{}.self_attn.q_proj": "blk.{}.attn_q",
        "layers.{}.self_attn.q_a_proj": "blk.{}.attn_q_a",
        "layers.{}.self_attn.q_a_layernorm": "blk.{}.attn_q_a_norm",
        "layers.{}.self_attn.q_b_proj": "blk.{}.attn_q_b",
        "layers.{}.self_attn.kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
        "layers.{}.self_attn.kv_a_layernorm": "blk.{}.attn_kv_a_norm",
        "layers.{}.self_attn.kv_b_proj": (
            To("blk.{}.attn_k_b", half(keys_of_heads=True)),
            To("blk.{}.attn_v_b", half(keys_of_heads=False)),
        ),
        "layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    },
    older={"kimi_k2": "deepseek_v3"},
)  # fmt: skip
