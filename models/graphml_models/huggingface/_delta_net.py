"""Delta nets of Qwen's hybrid models: keys from config.json, and heads of values in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import (
    Names,
    To,
    after,
    calculated,
    flat,
    minus_exp,
    permuted,
    plus_one,
)
from graphml.loading.huggingface.rope import rope_keys
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml_models.huggingface._names import ATTENTION, TOP

DECAY = after(minus_exp, flat)
NAMES: Names = {
    **TOP, **ATTENTION,
    "norm": To("output_norm", plus_one),
    "layers.{}.input_layernorm": To("blk.{}.attn_norm", plus_one),
    "layers.{}.post_attention_layernorm": To("blk.{}.post_attention_norm", plus_one),
    "layers.{}.self_attn.q_norm": To("blk.{}.attn_q_norm", plus_one),
    "layers.{}.self_attn.k_norm": To("blk.{}.attn_k_norm", plus_one),
    "layers.{}.linear_attn.norm": "blk.{}.ssm_norm",
}  # fmt: skip
DEFAULTS = {"partial_rotary_factor": 0.25}


def keys(config: HfConfig, attending: Sequence[str] = ("full_attention",)) -> dict[str, Value]:
    """Attention as of llama, sizes of the delta nets, and which layers have one.

    attending: what `layer_types` call the others.
    """
    config.activation("silu")
    config.only("rms_norm_eps", 1e-6)  # the delta nets' queries and keys are always divided with it
    config.only("attn_output_gate", True)
    metadata = decoder_keys(config)
    count, width = int(str(metadata["block_count"])), config.size("linear_key_head_dim")
    interval = config.size("full_attention_interval", 4) or 4
    kinds = {"linear_attention": True, **dict.fromkeys(attending, False)}
    recurrent = config.layered("layer_types", kinds, count)
    if config.size("linear_value_head_dim") != width:
        raise config.error(f"linear_value_head_dim: wanted {width}, as of keys")
    return {
        **metadata,
        **rope_keys(config, metadata),
        "ssm.inner_size": config.size("linear_num_value_heads") * width,
        "ssm.state_size": width,
        "ssm.time_step_rank": config.size("linear_num_value_heads"),
        "ssm.group_count": config.size("linear_num_key_heads"),
        "ssm.conv_kernel": config.size("linear_conv_kernel_dim"),
        "attention.recurrent_layers": recurrent or [bool((i + 1) % interval) for i in range(count)],
    }


def _order(config: HfConfig, total: int, name: str) -> NDArray[np.intp]:
    """Where each element of the values is stored, of heads that are to be as far apart as there are keys."""
    groups, heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    if not groups or heads % groups or total % heads:
        raise config.error(f"{name}: {total} are no {heads} heads of values for {groups} of keys")
    places: NDArray[np.intp] = np.arange(total).reshape(groups, heads // groups, -1)
    return places.swapaxes(0, 1).reshape(-1)


def values(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """Rows of heads of values in our order; transformers has those that share keys side by side."""
    return permuted(tensor, name, lambda rows: _order(config, rows, name))


def last_values(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """As `values`, behind the rows of queries and keys."""
    first = 2 * config.size("linear_num_key_heads") * config.size("linear_key_head_dim")

    def order(rows: int) -> NDArray[np.intp]:
        return np.concatenate([np.arange(first), first + _order(config, rows - first, name)])

    return permuted(tensor, name, order)


def columns(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """As `values`, of columns."""
    if config.size("linear_num_key_heads") == config.size("linear_num_value_heads"):
        return tensor
    kind = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}.get(tensor.dtype)
    if len(tensor.shape) != 2:
        raise config.error(f"{name}: wanted a matrix; got {tensor.dtype} {list(tensor.shape)}")
    if kind is None:  # blocks hold columns of several heads
        return calculated(tensor, name, lambda values: values[:, _order(config, tensor.shape[1], name)])

    def compute() -> NDArray[np.uint8]:
        order = _order(config, tensor.shape[1], name)
        chosen = tensor.data.view(kind).reshape(tensor.shape)[:, order]
        return np.ascontiguousarray(chosen).reshape(-1).view(np.uint8)

    return DeferredTensor.of(name, tensor.dtype, tensor.shape, compute)
