"""Command R7B: `Cohere2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import cohere
from graphml_models.huggingface._names import windows


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Command R, with windows; layers without one have no positions."""
    config.ignore(
        "cache_implementation", "order_of_interleaved_layers", "rotary_pct", "use_parallel_embedding"
    )
    config.only("position_embedding_type", "rope_gptj")
    config.only("use_gated_activation", True)
    config.only("use_parallel_block", True)
    metadata = cohere.keys(config)
    metadata |= windows(config, metadata, period=config.size("sliding_window_pattern", 0) or 4)
    if "attention.sliding_window" not in metadata:
        raise config.error("layer_types: wanted some layers with a window, which alone have positions")
    return metadata


FAMILY = Family(
    model_types=("cohere2",),
    architecture="cohere2",
    keys=keys,
    names=cohere.NAMES,
    defaults={"rope_theta": 1e4},
)
