"""ModernBERT: `ModernBertModel`; windows, two ropes, a classifier of its own."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """Layers with a window see half of it on either side; by a period, the first of so many sees all."""
    activation = config.activation("gelu_erf", "silu")
    metadata = decoder_keys(config, eps=LAYER_EPS, field="norm_eps")
    n_layer = int(str(metadata["block_count"]))
    bases = config.number("global_rope_theta", 160000.0), config.number("local_rope_theta", 10000.0)
    metadata |= {"rope.freq_base_swa": bases[1], **rope_keys(config, metadata, base=bases[0])}
    kinds = {"sliding_attention": True, "full_attention": False}
    period = config.size("global_attn_every_n_layers", 3)
    windowed = config.layered("layer_types", kinds, n_layer)
    if windowed is None:
        windowed = [bool(i % period) if period else True for i in range(n_layer)]
    config.only("classifier_activation", "gelu")
    pooling = config.get("classifier_pooling")
    if pooling not in ("cls", "mean"):
        raise config.error(f"classifier_pooling: wanted cls or mean; got {str(pooling)[:60]!r}")
    return {
        **metadata,
        "hidden_activation": "silu" if activation == "silu" else "gelu",
        "attention.sliding_window": config.size("local_attention"),
        "attention.sliding_window_pattern": windowed,
        "classifier.pooling_type": 1 if pooling == "mean" else 2,
    }


FAMILY = Family(
    model_types=("modernbert",),
    architecture="modern-bert",
    keys=keys,
    names={
        "embeddings.tok_embeddings": "token_embd",
        "embeddings.norm": "token_embd_norm",
        "layers.{}.attn_norm": "blk.{}.attn_norm",
        "layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
        "layers.{}.attn.Wo": "blk.{}.attn_output",
        "layers.{}.mlp_norm": "blk.{}.ffn_norm",
        "layers.{}.mlp.Wi": "blk.{}.ffn_up",
        "layers.{}.mlp.Wo": "blk.{}.ffn_down",
        "final_norm": "output_norm",
        "head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output",
        "decoder": None,
    },
    defaults={"classifier_activation": "gelu", "classifier_pooling": "cls"},
    ignored=("deterministic_flash_attn",),
    logits=False,
)  # fmt: skip
