"""MiniCPM 1, 2 and 4: `MiniCPMForCausalLM` of its authors, Granite's factors from other fields."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, PAIRED, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with factors; a config of sparse attention is of texts that llama.cpp computes without."""
    metadata = llama_keys(config)
    config.only("num_experts", 0)
    config.ignore("mup_denominator", "sparse_config")
    depth, width = config.number("scale_depth", 1.0), config.number("dim_model_base", 1.0)
    if depth <= 0 or width <= 0:
        raise config.error(f"scale_depth, dim_model_base: wanted numbers above 0; got {depth}, {width}")
    return {
        **metadata,
        "embedding_scale": config.number("scale_emb", 1.0),
        "residual_scale": depth / float(str(metadata["block_count"])) ** 0.5,
        "logit_scale": float(str(metadata["embedding_length"])) / width,
    }


FAMILY = Family(
    model_types=("minicpm",),
    architecture="minicpm",
    keys=keys,
    names={**LLAMA, **PAIRED},
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
)
