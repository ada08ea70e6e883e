"""Gemma 3n, its language model: `Gemma3nForCausalLM`, and of `Gemma3nForConditionalGeneration`."""

from __future__ import annotations

from statistics import NormalDist

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys, window_keys
from graphml.loading.huggingface.family import Family, Names
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface import gemma4

STREAMS: Names = {
    "altup_projections.{}": "altup_proj",
    "altup_unembed_projections.{}": "altup_unembd_proj",
    "layers.{}.altup.correct_output_scale": "blk.{}.altup_correct_scale.weight",
    "layers.{}.altup.correction_coefs": "blk.{}.altup_correct_coef",
    "layers.{}.altup.prediction_coefs": "blk.{}.altup_predict_coef",
    "layers.{}.altup.modality_router": "blk.{}.altup_router",
    "layers.{}.altup.router_norm": "blk.{}.altup_router_norm",
    "layers.{}.laurel.linear_left": "blk.{}.laurel_l",
    "layers.{}.laurel.linear_right": "blk.{}.laurel_r",
    "layers.{}.laurel.post_laurel_norm": "blk.{}.laurel_post_norm",
}


def keys(config: HfConfig) -> dict[str, Value]:
    """Several residual streams, layers that share caches, gates that keep their largest numbers."""
    config.activation("gelu")
    config.only("altup_correct_scale", True)
    config.only("altup_active_idx", 0)
    config.only("attn_logit_softcapping", 0.0)
    widths = config.get("intermediate_size")
    if isinstance(widths, list) and widths and all(type(ff_width) is int for ff_width in widths):
        metadata = decoder_keys(config, width=max(widths))  # the tensors have the width of each
    else:
        metadata = decoder_keys(config)
    count = int(str(metadata["block_count"]))
    metadata |= window_keys(config, metadata) | rope_keys(config, metadata, base=1e6)
    shares = config.get("activation_sparsity_pattern")
    shares = [shares] * count if isinstance(shares, float) else shares
    sparsities = shares if isinstance(shares, list) else []
    known = all(
        isinstance(sparsity, int | float) and (sparsity == 0.0 or 0.5 < sparsity < 1.0)
        for sparsity in sparsities
    )
    if not known or len(sparsities) != count:
        raise config.error(
            f"activation_sparsity_pattern: wanted {count} shares, 0 or above 0.5; got {str(shares)[:60]}"
        )
    rows, n_vocab = config.size("vocab_size_per_layer_input"), config.size("vocab_size")
    if rows > n_vocab:
        raise config.error(f"vocab_size_per_layer_input: wanted at most vocab_size, {n_vocab}; got {rows}")
    return {
        **metadata,
        "altup.num_inputs": config.size("altup_num_inputs"),
        "altup.active_idx": config.size("altup_active_idx"),
        "activation_sparsity_scale": [
            NormalDist().inv_cdf(sparsity) if sparsity else 0.0 for sparsity in sparsities
        ],
        "attention.shared_kv_layers": config.size("num_kv_shared_layers"),
        "embedding_length_per_layer_input": config.size("hidden_size_per_layer_input"),
        "final_logit_softcapping": config.cap("final_logit_softcapping"),
    }


FAMILY = Family(
    model_types=("gemma3n_text",),
    architecture="gemma3n",
    keys=keys,
    names={**gemma4.FAMILY.names, **STREAMS},
    defaults={"tie_word_embeddings": True, "rope_local_base_freq": 10000.0},
    ignored=("altup_coef_clip", "laurel_rank"),
)  # fmt: skip
