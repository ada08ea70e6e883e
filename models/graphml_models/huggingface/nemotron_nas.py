"""Llama-Nemotron: `DeciLMForCausalLM` of its authors, llama with layers pruned one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, permuted
from graphml.loading.huggingface.rope import rope_keys
from graphml.weights import Tensor
from graphml_models.huggingface._names import LLAMA

SINKS = ("num_sink_tokens", "sparsify", "unshifted_sink", "use_prefill_window_in_sink_attention",
         "window_length")  # fmt: skip


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with heads and feed-forwards by layer; windows and sinks are refused."""
    config.activation("silu")
    config.ignore("intermediate_size", "num_key_value_heads", "block_configs")
    config.follows("num_key_value_heads", config.size("attention.head_count"))
    metadata = decoder_keys(config, width=0)
    n_layer, n_head = (int(str(metadata[key])) for key in ("block_count", "attention.head_count"))
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != n_layer:
        raise config.error(f"block_configs: wanted one of each of the {n_layer} layers")
    heads = [
        _heads(config, i, _part(config, i, block, "attention"), n_head) for i, block in enumerate(blocks)
    ]
    for i, block in enumerate(blocks):
        if _part(config, i, block, "ffn").get("replace_with_linear"):
            raise config.error(f"block_configs: layer {i}: wanted a feed-forward or none, no matrix for it")
    return {
        **metadata,
        **rope_keys(config, metadata),
        "attention.head_count": [count for count, _ in heads],
        "attention.head_count_kv": [count for _, count in heads],
    }


def _part(config: HfConfig, layer: int, block: Any, name: str) -> dict[str, Any]:
    part = block.get(name) if isinstance(block, dict) else None
    if not isinstance(part, dict) or any(part.get(field) for field in SINKS):
        known = f"an object without {', '.join(SINKS)}"
        raise config.error(f"block_configs: layer {layer}: {name}: wanted {known}; got {str(part)[:80]}")
    return part


def _heads(config: HfConfig, layer: int, attention: dict[str, Any], n_head: int) -> tuple[int, int]:
    """Heads of queries and of keys; no keys where a matrix stands for attention, none of both without it."""
    group = attention.get("n_heads_in_group")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return (n_head if attention.get("replace_with_linear") else 0), 0
    if type(group) is not int or group < 1 or n_head % group:
        where = f"block_configs: layer {layer}: n_heads_in_group"
        raise config.error(f"{where}: wanted a number that divides {n_head}; got {str(group)[:20]}")
    return n_head, n_head // group


def _paired(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """Rows for a rope of neighbours, whatever the number of heads is."""
    width = config.size("embedding_length") // config.size("attention.head_count")

    def order(rows: int) -> NDArray[np.intp]:
        if rows % width or width % 2:
            raise config.error(f"{name}: {rows} rows are no heads of {width}")
        return np.arange(rows).reshape(-1, 2, width // 2).swapaxes(1, 2).reshape(-1)

    return permuted(tensor, name, order)


FAMILY = Family(
    model_types=("nemotron-nas",),
    architecture="deci",
    keys=keys,
    names={
        **LLAMA,
        "layers.{}.self_attn.q_proj": To("blk.{}.attn_q", _paired),
        "layers.{}.self_attn.k_proj": To("blk.{}.attn_k", _paired),
        "layers.{}.self_attn.linear_attn": "blk.{}.attn_output",
    },
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
)
