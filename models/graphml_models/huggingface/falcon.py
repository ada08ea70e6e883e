"""Falcon: `FalconForCausalLM`, both of its layouts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, permuted
from graphml.loading.huggingface.rope import rope_keys
from graphml.weights import Tensor


def heads_of_keys(config: HfConfig) -> int:
    """The larger models have several, of the smaller one for all, or as many as heads of queries."""
    heads = config.size("attention.head_count")
    n_kv_heads, shared = config.size("num_kv_heads", heads), config.flag("multi_query", True)
    if config.flag("new_decoder_architecture", False):
        return n_kv_heads
    return 1 if shared else heads


def keys(config: HfConfig) -> dict[str, Value]:
    """Attention beside feed-forward; models with ALiBi, or one after the other, are refused."""
    config.only("alibi", False)
    config.only("parallel_attn", True)
    if config.flag("new_decoder_architecture", False):
        config.only("num_ln_in_parallel_attn", 1, 2, None)  # the tensors say which
    config.ignore("num_ln_in_parallel_attn")
    metadata = decoder_keys(config, eps="attention.layer_norm_epsilon")
    metadata["attention.head_count_kv"] = heads_of_keys(config)
    metadata["hidden_activation"] = config.activation("gelu_erf", "gelu")
    return metadata | rope_keys(config, metadata)


def by_kind(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """Rows of all q, then k, then v; transformers has the heads of queries of each head of keys before it."""
    heads, heads_kv = config.size("attention.head_count"), heads_of_keys(config)

    def order(rows: int) -> NDArray[np.intp]:
        group = heads // heads_kv + 2
        if heads % heads_kv or rows % (heads_kv * group):
            raise config.error(f"{name}: {rows} rows are no q, k and v of {heads} and {heads_kv} heads")
        places = np.arange(rows).reshape(heads_kv, group, -1)
        return np.concatenate(
            [places[:, :-2].reshape(-1), places[:, -2].reshape(-1), places[:, -1].reshape(-1)]
        )

    return permuted(tensor, name, order)


FAMILY = Family(
    model_types=("falcon", "RefinedWeb", "RefinedWebModel"),
    architecture="falcon",
    keys=keys,
    names={
        "word_embeddings": "token_embd",
        "ln_f": "output_norm",
        "lm_head": "output",
        "h.{}.input_layernorm": "blk.{}.attn_norm",
        "h.{}.ln_mlp": "blk.{}.attn_norm",
        "h.{}.ln_attn": "blk.{}.attn_norm_2",
        "h.{}.self_attention.query_key_value": To("blk.{}.attn_qkv", by_kind),
        "h.{}.self_attention.dense": "blk.{}.attn_output",
        "h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    },
    defaults={"activation": "gelu", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "alibi": False},
)
