"""Youtu-LLM: `YoutuForCausalLM`, DeepSeek-V3's attention without experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import To
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml_models.huggingface import deepseek_v3


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-V3, all layers dense."""
    config.only("rms_norm_eps", 1e-6)  # norms of the latents always have it
    metadata = deepseek_v3.latent_keys(config)
    return {
        **metadata,
        "leading_dense_block_count": metadata["block_count"],
        "expert_count": 0,
        "expert_used_count": 0,
    }


def padded(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """The embedding, of zeros for the token that pads: the class sets them whenever it is loaded."""
    pad = config.get("pad_token_id")
    if pad is None:
        return tensor
    rows = tensor.shape[0] if tensor.shape else 1
    if type(pad) is not int or not -rows <= pad < rows:
        raise config.error(f"pad_token_id: wanted one of {rows} tokens; got {str(pad)[:60]}")

    def compute() -> NDArray[np.uint8]:
        values = tensor.data.reshape(rows, -1).copy()
        values[pad] = 0
        return values.reshape(-1)

    return DeferredTensor.of(name, tensor.dtype, tensor.shape, compute)


FAMILY = replace(
    deepseek_v3.FAMILY,
    model_types=("youtu",),
    keys=keys,
    names={**deepseek_v3.FAMILY.names, "embed_tokens": To("token_embd", padded)},
    defaults={"tie_word_embeddings": True},
    ignored=("embedding_initializer_range",),
)  # fmt: skip
