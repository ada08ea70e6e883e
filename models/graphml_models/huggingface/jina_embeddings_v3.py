"""Jina Embeddings 3: `JinaEmbeddingsV3Model`, without its adapters."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface import nomic_bert


def keys(config: HfConfig) -> dict[str, Value]:
    """A rope of halves, GELU, biases."""
    config.activation("gelu_erf")
    config.size("type_vocab_size")  # the tensor has the rows
    metadata = decoder_keys(config, eps=LAYER_EPS)
    return metadata | rope_keys(config, metadata, base=20000.0)


FAMILY = Family(
    model_types=("jina_embeddings_v3",),
    architecture="jina-bert-v3",
    keys=keys,
    names={
        **nomic_bert.LAYERS,
        "encoder.layers.{}.mixer.Wqkv": "blk.{}.attn_qkv",
        "encoder.layers.{}.mixer.out_proj": "blk.{}.attn_output",
        "encoder.layers.{}.mlp.fc1": "blk.{}.ffn_up",
        "pooler.dense": None,
        "classifier.dense": "cls", "classifier.out_proj": "cls.output",
        "lm_head": None, "lm_head.dense": None, "lm_head.layer_norm": None, "lm_head.decoder": None,
    },
    logits=False,
)  # fmt: skip
