"""Mistral Small 4 and Large 3: `Mistral4ForCausalLM`, DeepSeek-V3 with far queries that are scaled up."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.rope import PART, required_rope
from graphml_models.deepseek2 import STEP, TEMPERATURE
from graphml_models.huggingface import deepseek_v3
from graphml_models.huggingface.deepseek_v2 import SOFTMAX
from graphml_models.huggingface.glm4_moe import routing_keys
from graphml_models.huggingface.ministral3 import LENGTH, SCALING


def keys(config: HfConfig) -> dict[str, Value]:
    """Latent attention, experts by a softmax, and a factor of queries that grows with their positions."""
    config.only("rms_norm_eps", 1e-5, 1e-6)  # norms of the latents have 1e-6, near enough to 1e-5
    rotated = config.size("qk_rope_head_dim")
    whole = rotated + config.size("qk_nope_head_dim")
    rope = dict(required_rope(config))
    stated, beta, length = rope.pop(PART, config.get(PART)), rope.pop(SCALING, None), rope.get(LENGTH)
    if stated is not None and int(config.checked_number(PART, stated) * whole) != rotated:
        raise config.error(f"{PART}: wanted {rotated} of the {whole} dimensions of a head; got {stated}")
    rope.pop("max_position_embeddings", None)
    for name, value in (
        ("rope_parameters", rope),
        ("rope_scaling", None),
        ("head_dim", rotated),
        (PART, None),
    ):
        config.follows(name, value)
    if beta is None or type(length) is not int or length < 1:
        raise config.error(
            f"rope_parameters: wanted {SCALING} and {LENGTH}; got {beta!r:.20} and {length!r:.20}"
        )
    return {
        **deepseek_v3.latent_keys(config),
        **routing_keys(config, SOFTMAX),
        TEMPERATURE: config.checked_number(SCALING, beta),
        STEP: length,
    }


FAMILY = replace(deepseek_v3.FAMILY, model_types=("mistral4",), architecture="mistral4", keys=keys, older={})
