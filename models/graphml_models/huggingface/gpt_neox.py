"""GPT-NeoX and Pythia: `GPTNeoXForCausalLM`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, permuted
from graphml.loading.huggingface.rope import rope_keys
from graphml.weights import Tensor


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, rope of a part of each head, GELU by the error function or in its tanh form."""
    metadata = decoder_keys(config, eps="attention.layer_norm_epsilon")
    metadata["hidden_activation"] = config.activation("gelu_erf", "gelu")
    metadata["use_parallel_residual"] = config.flag("use_parallel_residual", True)
    return metadata | rope_keys(config, metadata)


def by_kind(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """Rows of all q, then k, then v; transformers has q, k and v of one head after the other."""
    heads = config.size("attention.head_count")

    def order(rows: int) -> NDArray[np.intp]:
        if rows % (3 * heads):
            raise config.error(f"{name}: {rows} rows are not q, k and v of {heads} heads")
        return np.arange(rows).reshape(heads, 3, rows // heads // 3).swapaxes(0, 1).reshape(-1)

    return permuted(tensor, name, order)


FAMILY = Family(
    model_types=("gpt_neox",),
    architecture="gptneox",
    keys=keys,
    names={
        "embed_in": "token_embd",
        "final_layer_norm": "output_norm",
        "embed_out": "output",
        "lm_head": "output",
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "layers.{}.attention.query_key_value": To("blk.{}.attn_qkv", by_kind),
        "layers.{}.attention.dense": "blk.{}.attn_output",
        "layers.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "layers.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
        "layers.{}.attention.bias": None,  # the causal mask
        "layers.{}.attention.masked_bias": None,
    },
    defaults={"rotary_pct": 0.25},
)
