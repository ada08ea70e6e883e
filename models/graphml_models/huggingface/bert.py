"""BERT: `BertModel` and kin with a masked-language head or a classifier; learned positions, norms behind."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names

LAYER: Names = {
    "encoder.layer.{}.attention.self.query": "blk.{}.attn_q",
    "encoder.layer.{}.attention.self.key": "blk.{}.attn_k",
    "encoder.layer.{}.attention.self.value": "blk.{}.attn_v",
    "encoder.layer.{}.attention.output.dense": "blk.{}.attn_output",
    "encoder.layer.{}.attention.output.LayerNorm": "blk.{}.attn_output_norm",
    "encoder.layer.{}.intermediate.dense": "blk.{}.ffn_up",
    "encoder.layer.{}.output.dense": "blk.{}.ffn_down",
    "encoder.layer.{}.output.LayerNorm": "blk.{}.layer_output_norm",
}
EMBEDDINGS: Names = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_ids": None,
    "embeddings.token_type_ids": None,
}
POOLER: Names = {"pooler.dense": "cls", "classifier": "cls.output"}
"""A classifier of the first row; the pooler alone is of no use to us."""
MASKED: Names = {
    "cls.predictions": None, "cls.predictions.decoder": None, "cls.predictions.transform.dense": None,
    "cls.predictions.transform.LayerNorm": None, "cls.predictions.transform.layer_norm": None,
    "cls.seq_relationship": None,
}  # fmt: skip
"""The head that guesses masked tokens, in training."""


def with_old_norms(names: Names) -> Names:
    """And the names of layer norms that checkpoints of TensorFlow's time have."""
    norms = {name: place for name, place in names.items() if name.endswith("LayerNorm")}
    return {
        **names,
        **{f"{name}.gamma": place and f"{place}.weight" for name, place in norms.items()},
        **{f"{name}.beta": place and f"{place}.bias" for name, place in norms.items()},
    }


def keys(config: HfConfig) -> dict[str, Value]:
    """Sizes and epsilon; attention sees all of a text."""
    config.activation("gelu_erf")
    config.only("is_decoder", False)
    config.only("add_cross_attention", False)
    config.only("position_embedding_type", "absolute")
    config.size("type_vocab_size")  # the tensor has the rows
    return decoder_keys(config, eps=LAYER_EPS)


FAMILY = Family(
    model_types=("bert",),
    architecture="bert",
    keys=keys,
    names=with_old_norms({**EMBEDDINGS, **LAYER, **POOLER, **MASKED}),
    logits=False,
)
