"""Gemma: `GemmaForCausalLM`, whose norms multiply with 1 + weight."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.config_names import ACTIVATIONS
from graphml.loading.huggingface.family import Family, Names, To, plus_one
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import ATTENTION, GATED, TOP

NORMS: Names = {
    "norm": To("output_norm", plus_one),
    "layers.{}.input_layernorm": To("blk.{}.attn_norm", plus_one),
    "layers.{}.post_attention_layernorm": To("blk.{}.ffn_norm", plus_one),
}


def keys(config: HfConfig, bidirectional: bool = False) -> dict[str, Value]:
    """As of llama, with GELU in its tanh form, also where the older field `hidden_act` says another one.

    bidirectional: whether attention may be, which the caller reads.
    """
    config.only("hidden_activation", "gelu_pytorch_tanh")
    config.only("hidden_act", *(name for name, kind in ACTIVATIONS.items() if kind in ("gelu", "gelu_erf")))
    metadata = decoder_keys(config)
    if not bidirectional:
        config.only("use_bidirectional_attention", False)
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("gemma",),
    architecture="gemma",
    keys=keys,
    names={**TOP, **ATTENTION, **GATED, **NORMS},
    defaults={"tie_word_embeddings": True},
)
