"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose first positions are of padding."""

from __future__ import annotations

import numpy as np

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, permuted
from graphml.loading.pooling import PADDING_ID
from graphml.weights import Tensor
from graphml_models.huggingface import bert


def offset(config: HfConfig) -> int:
    """The position of a text's first token: behind that of padding."""
    return 1 + config.size("pad_token_id", 1)


def keys(config: HfConfig) -> dict[str, Value]:
    """As of BERT, with fewer positions."""
    metadata = bert.keys(config)
    positions = int(str(metadata["context_length"])) - offset(config)
    if positions < 1:
        raise config.error(f"max_position_embeddings: wanted more than {offset(config)}; got {positions}")
    return {**metadata, "context_length": positions, PADDING_ID: offset(config) - 1}


def placed(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """The rows of positions that tokens of a text have."""
    first = offset(config)
    return permuted(tensor, name, lambda rows: np.arange(first, rows), tensor.shape[0] - first)


FAMILY = Family(
    model_types=("roberta", "xlm-roberta", "camembert"),
    architecture="bert",
    keys=keys,
    names=bert.with_old_norms({
        **bert.EMBEDDINGS, **bert.LAYER,
        "embeddings.position_embeddings": To("position_embd", placed),
        "pooler.dense": None,
        "classifier.dense": "cls", "classifier.out_proj": "cls.output",
        "lm_head": None, "lm_head.dense": None, "lm_head.layer_norm": None, "lm_head.decoder": None,
    }),
    logits=False,
)  # fmt: skip
