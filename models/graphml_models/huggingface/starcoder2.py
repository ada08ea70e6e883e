"""StarCoder 2: `Starcoder2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import ATTENTION, NORMS, TOP


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, a plain feed-forward with GELU, the window of all layers."""
    metadata = decoder_keys(config, eps=LAYER_EPS, field="norm_epsilon")
    metadata["hidden_activation"] = config.activation("gelu", "gelu_erf")
    metadata["attention.sliding_window"] = config.window()
    metadata["attention.sliding_window_pattern"] = 0
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("starcoder2",),
    architecture="starcoder2",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS,
        "layers.{}.mlp.c_fc": "blk.{}.ffn_up",
        "layers.{}.mlp.c_proj": "blk.{}.ffn_down",
    },
    defaults={"tie_word_embeddings": True},
)  # fmt: skip
