"""NeoBERT: the authors' `NeoBERT` and `NeoBERTLMHead` without its head; transformers has no class of it."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface.gpt_neox import by_kind

ROUNDED_TO = 8


def keys(config: HfConfig) -> dict[str, Value]:
    """RMS norms, a rope of neighbours, feed-forwards of two thirds of the stated width, rounded up."""
    for name, wanted in (("rope", True), ("rms_norm", True), ("ngpt", False), ("hidden_act", "SwiGLU")):
        config.only(name, wanted)
    stated = config.size("feed_forward_length")
    width = -(-(2 * stated // 3) // ROUNDED_TO) * ROUNDED_TO
    metadata = decoder_keys(config, width=width)
    config.only("dim_head", None, metadata["attention.key_length"])
    metadata["context_length"] = config.size("max_length", 1024)
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("neobert",),
    architecture="neo-bert",
    keys=keys,
    names={
        "encoder": "token_embd",
        "layer_norm": "enc.output_norm",
        "transformer_encoder.{}.attention_norm": "blk.{}.attn_norm",
        "transformer_encoder.{}.qkv": To("blk.{}.attn_qkv", by_kind),
        "transformer_encoder.{}.wo": "blk.{}.attn_output",
        "transformer_encoder.{}.ffn_norm": "blk.{}.ffn_norm",
        "transformer_encoder.{}.ffn.w12": "blk.{}.ffn_up",
        "transformer_encoder.{}.ffn.w3": "blk.{}.ffn_down",
        "freqs_cis": None,
        "decoder": None,
    },
    defaults={"norm_eps": 1e-6, "hidden_act": "SwiGLU", "rope": True, "rms_norm": True, "ngpt": False},
    ignored=("flash_attention", "embedding_init_range", "decoder_init_range", "classifier_init_range",
             "base_scale", "kwargs", "trust_remote_code"),
    logits=False,
)  # fmt: skip
