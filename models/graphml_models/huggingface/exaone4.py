"""EXAONE 4: `Exaone4ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import olmo2
from graphml_models.huggingface._names import windows


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; where some layers have a window, the others have no positions."""
    metadata = olmo2.keys(config)
    config.ignore("sliding_window_pattern")  # which layer_types spells out
    if config.get("sliding_window") is None:
        config.ignore("layer_types")
        return {**metadata, "attention.sliding_window": 0, "attention.sliding_window_pattern": 0}
    return metadata | windows(config, metadata)


FAMILY = Family(
    model_types=("exaone4",),
    architecture="exaone4",
    keys=keys,
    names=olmo2.NAMES,
    older={"exaone4_5_text": "exaone4"},
)
