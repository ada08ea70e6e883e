"""The language model of Muse Glimmer, on text alone: of `MuseGlimmerForConditionalGeneration`."""

from __future__ import annotations

import numpy as np

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys, window_keys
from graphml.loading.huggingface.family import Family, To, plus_one
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import ATTENTION, GATED, PAIRED, TOP


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with windows and positions in the same layers, and logits that are scaled and capped."""
    config.activation("silu")
    config.only("post_norm_eps", 1e-8)
    metadata = decoder_keys(config)
    n_layer, width = int(str(metadata["block_count"])), int(str(metadata["attention.key_length"]))
    windowed = [(n_layer - 1 - i) % 4 != 0 for i in range(n_layer)]
    metadata |= {"attention.sliding_window": 0, "attention.sliding_window_pattern": windowed}
    if config.get("layer_types") is not None:
        metadata |= {"attention.sliding_window_pattern": [False] * n_layer, **window_keys(config, metadata)}
    elif config.window():
        metadata["attention.sliding_window"] = config.window()
    stated = metadata["attention.sliding_window_pattern"]
    bases = config.get("layer_rope_theta")
    turned = (
        windowed if bases is None else [bool(base) for base in bases] if isinstance(bases, list) else None
    )
    if turned != stated or not metadata["attention.sliding_window"]:
        raise config.error(
            "layer_types, layer_rope_theta, sliding_window: wanted a window and positions in the same layers"
        )
    rope = rope_keys(config, metadata)
    if "rope.scaling.type" in rope or config.tensors or rope["rope.dimension_count"] != width:
        raise config.error("rope_parameters: this architecture knows rope_type default, of whole heads")
    factor = config.number("qk_scale_factor")
    for i in range(n_layer):
        config.tensors[f"blk.{i}.attn_q_norm.weight"] = np.full(width, factor, np.float32)
        config.tensors[f"blk.{i}.attn_k_norm.weight"] = np.ones(width, np.float32)
    return {
        **metadata,
        **rope,
        "logit_scale": config.number("output_multiplier"),
        "final_logit_softcapping": config.cap("final_logit_softcapping"),
    }


FAMILY = Family(
    model_types=("muse_glimmer_text",),
    architecture="muse-glimmer",
    keys=keys,
    names={
        **TOP, **ATTENTION, **PAIRED, **GATED,
        "layers.{}.self_attn.gate_proj": "blk.{}.attn_gate",
        "layers.{}.input_layernorm": To("blk.{}.attn_norm", plus_one),
        "layers.{}.post_attention_layernorm": To("blk.{}.post_attention_norm", plus_one),
        "layers.{}.pre_feedforward_layernorm": To("blk.{}.ffn_norm", plus_one),
        "layers.{}.post_feedforward_layernorm": To("blk.{}.post_ffw_norm", plus_one),
    },
    defaults={"final_logit_softcapping": 20.0, "output_multiplier": 0.19611613513818404},
)  # fmt: skip
