"""BitNet b1.58: `BitNetForCausalLM`; its activations are not rounded to 8 bits."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.bitnet import ACTIVATIONS
from graphml_models.huggingface._names import LLAMA


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with another activation of the gates."""
    metadata = decoder_keys(config)
    return {
        **metadata,
        **rope_keys(config, metadata, base=500000.0),
        "hidden_activation": config.activation(*ACTIVATIONS),
    }


FAMILY = Family(
    model_types=("bitnet",),
    architecture="bitnet",
    keys=keys,
    names={
        **LLAMA,
        "layers.{}.self_attn.attn_sub_norm": "blk.{}.attn_sub_norm",
        "layers.{}.mlp.ffn_sub_norm": "blk.{}.ffn_sub_norm",
    },
)
