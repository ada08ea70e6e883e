"""OLMo: `OlmoForCausalLM`, whose norms have no weights and a fixed epsilon."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import ATTENTION, GATED, PAIRED, TOP


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; q, k and v may be clamped."""
    config.activation("silu")
    metadata = decoder_keys(config, eps=LAYER_EPS)
    metadata["attention.clamp_kqv"] = config.cap("clip_qkv")
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("olmo",),
    architecture="olmo",
    keys=keys,
    names={**TOP, **ATTENTION, **PAIRED, **GATED},
    defaults={"layer_norm_eps": 1e-5},
)
