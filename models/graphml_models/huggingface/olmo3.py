"""OLMo 3: `Olmo3ForCausalLM`, OLMo 2 with windows."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import olmo2
from graphml_models.huggingface._names import windows

THETA = 5e5
"""Rope's base, where config.json says none."""


def keys(config: HfConfig) -> dict[str, Value]:
    """As of OLMo 2; the scaling of rope is for layers that see all."""
    metadata = olmo2.keys(config)
    if config.get("rope_parameters") is None:  # `rope_theta` is of layers that see all alone
        metadata = {**metadata, "rope.freq_base_swa": THETA}
    return metadata | (windows(config, metadata, period=4) or {"attention.sliding_window": 0})


FAMILY = Family(
    model_types=("olmo3",),
    architecture="olmo2",
    keys=keys,
    names=olmo2.NAMES,
    defaults={"rope_theta": THETA},
)
