"""Jina Embeddings 2: `JinaBertModel` of its own code on the hub, whose model_type is BERT's.

The one for code, whose layers have further norms, is not read, nor are classifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import bert

ALIBI = "alibi"


def keys(config: HfConfig) -> dict[str, Value]:
    """Sizes and epsilon; scores fall with the distance, and feed-forwards have a gate."""
    config.activation("gelu_erf")
    config.only("position_embedding_type", ALIBI)
    config.only("feed_forward_type", "geglu")
    config.only("is_decoder", False)
    config.size("type_vocab_size")  # the tensor has the rows
    return decoder_keys(config, eps=LAYER_EPS)


def claims(config: Mapping[str, Any]) -> str | None:
    """A config of BERT whose positions are ALiBi's."""
    is_its = config.get("model_type") == "bert" and config.get("position_embedding_type") == ALIBI
    return "jina_bert_v2" if is_its else None


FAMILY = Family(
    model_types=("jina_bert_v2",),
    architecture="jina-bert-v2",
    keys=keys,
    names=bert.with_old_norms({
        **{name: place for name, place in bert.EMBEDDINGS.items() if "position_embeddings" not in name},
        **{name: place for name, place in bert.LAYER.items() if ".attention." in name},
        "encoder.layer.{}.mlp.gated_layers": "blk.{}.ffn_up",
        "encoder.layer.{}.mlp.wo": "blk.{}.ffn_down",
        "encoder.layer.{}.mlp.layernorm": "blk.{}.layer_output_norm",
        "pooler.dense": None, **bert.MASKED,
    }),
    ignored=("emb_pooler",),
    claims=claims,
    logits=False,
)  # fmt: skip
