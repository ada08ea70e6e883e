"""NeoBERT: `NeoBERT` of its own code on the hub, and `NeoBERTLMHead` without its head."""

from __future__ import annotations

from graphml.loading.huggingface.config import RMS_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface.gpt_neox import by_kind

MULTIPLE = 8  # of which the width of feed-forwards is, from two thirds of the stated one up


def keys(config: HfConfig) -> dict[str, Value]:
    """A rope of neighbours, norms before the blocks, SwiGLU in one matrix."""
    for name, wanted in (("rope", True), ("rms_norm", True), ("swiglu_packed", True), ("ngpt", False)):
        config.only(name, wanted)
    config.only("hidden_act", "swiglu", "SwiGLU")
    width = -(-(2 * config.size("feed_forward_length") // 3) // MULTIPLE) * MULTIPLE
    metadata = decoder_keys(config, RMS_EPS, "norm_eps", width)
    config.only("dim_head", None, metadata["attention.key_length"])
    metadata["context_length"] = config.size("max_length")
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("neobert",),
    architecture="neo-bert",
    keys=keys,
    names={
        "encoder": "token_embd",
        "transformer_encoder.{}.attention_norm": "blk.{}.attn_norm",
        "transformer_encoder.{}.qkv": To("blk.{}.attn_qkv", by_kind),
        "transformer_encoder.{}.wo": "blk.{}.attn_output",
        "transformer_encoder.{}.ffn_norm": "blk.{}.ffn_norm",
        "transformer_encoder.{}.ffn.w12": "blk.{}.ffn_up",
        "transformer_encoder.{}.ffn.w3": "blk.{}.ffn_down",
        "layer_norm": "enc.output_norm",
        "freqs_cis": None,
        "decoder": None,
    },
    defaults={"max_length": 1024, "norm_eps": 1e-6, "vocab_size": 30522},
    ignored=(
        "classifier_init_range", "decoder_init_range", "dropout", "embedding_init_range",
        "flash_attention", "kwargs", "pretrained_model_name_or_path",
    ),
    logits=False,
)  # fmt: skip
