"""Gemma 4's assistants: `Gemma4AssistantForCausalLM`, and that of Gemma 4 unified.

Their layers read the keys and values of the model that they draft for; all ids have logits, where the class
may compute those of some alone, by `masked_embedding`.
"""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys, window_keys
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import gemma4
from graphml_models.huggingface._names import HEAD_NORMS


def keys(config: HfConfig) -> dict[str, Value]:
    """Heads of two widths and windows as of Gemma 4, and the width of the model."""
    config.activation("gelu")
    config.only("tie_word_embeddings", True)
    config.only("use_bidirectional_attention", "vision")
    for name in ("enable_moe_block", "use_double_wide_mlp"):
        config.only(name, False)
    for name in ("hidden_size_per_layer_input", "vocab_size_per_layer_input"):
        config.only(name, 0)
    metadata = decoder_keys(config)
    n_layer, local = int(str(metadata["block_count"])), int(str(metadata["attention.key_length"]))
    config.only("num_kv_shared_layers", 0, n_layer)
    metadata |= {"attention.sliding_window": max(config.window(), 2)}
    metadata |= {"attention.sliding_window_pattern": [False] * n_layer} | window_keys(config, metadata)
    windowed = metadata["attention.sliding_window_pattern"]
    assert isinstance(windowed, list)
    wide, _ = gemma4.full_heads(config, windowed, int(str(metadata["attention.head_count_kv"])))
    return {
        **metadata,
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": local,
        "attention.value_length_swa": local,
        "attention.shared_kv_layers": n_layer,
        "nextn_predict_layers": n_layer,
        "embedding_length_out": config.size("backbone_hidden_size"),
        **gemma4.ropes(config, local, wide),
    }


OF_CLASS = ("centroid_intermediate_top_k", "num_centroids", "use_ordered_embeddings")
FAMILY = Family(
    model_types=("gemma4_assistant", "gemma4_unified_assistant"),
    architecture="gemma4-assistant",
    keys=keys,
    names={
        **{name: place for name, place in gemma4.FAMILY.names.items() if "expert" not in name},
        **HEAD_NORMS,
        "pre_projection": "nextn.pre_projection",
        "post_projection": "nextn.post_projection",
        "masked_embedding.centroids": None,
        "masked_embedding.token_ordering": None,
    },
    ignored=(*OF_CLASS, "final_logit_softcapping", "moe_intermediate_size", "num_experts", "top_k_experts"),
    whole=True,
)
