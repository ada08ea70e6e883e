"""Pooling: reduces the hidden rows of each text to one row, by GGUF's `pooling_type` and tensors `cls*`.

The part of a graph that follows an architecture's own nodes for embeddings in place of logits. Knows rows and
sequences; nothing of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Tensors
from graphml.loading.rank import Rank

POOLINGS = ("none", "mean", "cls", "last", "rank")
"""By GGUF's number: each token's row; the mean of a text's rows; its first; its last; scores of two texts."""
Rows: TypeAlias = Literal["all", "first", "last"]
"""Which rows of each sequence a step returns."""
LOGITS = "logits"
"""In place of a pooling: the logits of a text's tokens are wanted, not their hidden rows."""
ROWS: dict[str, Rows] = {"none": "all", LOGITS: "all", "mean": "all", "cls": "first", "last": "last"}
"""Which rows of a text the hidden layers must return."""
PADDING_ID = "position_padding_id"
"""Key of a folder whose class of transformers counts positions without the padding token: its id."""
KINDS_BY_ID = "token_type_by_id"
"""Key of whether ids from the size of the vocabulary on mean those below it as tokens of a second text."""
LATE = "late_interaction"
"""Key of whether texts are compared by the rows of their tokens, each behind the dense layers."""
NO_OUTPUT = "general.has_no_output"
"""Key of whether a decoder has neither an output matrix nor one that it shares: it embeds alone."""
Activation: TypeAlias = Callable[[Builder, Node], Node]
ACTIVATIONS: dict[str, Activation] = {
    "identity": lambda g, x: x, "tanh": Builder.tanh, "relu": Builder.relu, "gelu_erf": Builder.gelu_erf,
    "silu": Builder.silu, "sigmoid": Builder.sigmoid,
}  # fmt: skip
_UNSPECIFIED = 0xFFFFFFFF
_FIRST_DENSE = 2


def read_pooling(keys: Keys, key: str = "pooling_type") -> str:
    """The file's pooling; "" if it has none."""
    number = keys.integer(key, _UNSPECIFIED)
    if number == _UNSPECIFIED or number == -1:
        return ""
    if not 0 <= number < len(POOLINGS):
        raise keys.unsupported(key, f"0 to {len(POOLINGS) - 1} ({', '.join(POOLINGS)})")
    return POOLINGS[number]


def read_activation(keys: Keys, number: int) -> Activation:
    """What follows the dense layer `dense_NUMBER`; nothing where a file does not say it, as llama.cpp's."""
    key = f"dense_{number}.activation"
    name = keys.text(key, "identity")
    if name not in ACTIVATIONS:
        raise keys.unsupported(key, ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def pooled(
    g: Builder, keys: Keys, weights: Tensors, x_OD: Node, pooling: str, rank: Rank, eps: float
) -> Node:
    """Rows of the hidden layer -> embeddings: [O, D], for `mean` [S, D]; for `rank` scores in place of D.

    pooling: for `rank`, the rows are pooled by `rank.pooling`. eps: of the norm that some classifiers have.
    Rows of whole texts go through the dense layers `dense_2`, `dense_3` and so on of the file; with late
    interaction those of tokens do.
    """
    scored = pooling == "rank"
    if (rank.pooling if scored else pooling) == "mean":
        x_OD = g.mean_rows(x_OD, "mean")
    if scored:
        return _scores(g, weights, x_OD, rank, eps)
    number = _FIRST_DENSE
    projected = pooling != "none" or keys.boolean(LATE, False)
    while projected and weights.get(f"dense_{number}"):
        activation = read_activation(keys, number)
        x_OD = activation(g, weights.linear(x_OD, f"dense_{number}", f"dense_{number}"))
        number += 1
    return x_OD


def _scores(g: Builder, weights: Tensors, x_OD: Node, rank: Rank, eps: float) -> Node:
    if not weights.get("cls", "cls.output"):
        raise ArchitectureError(
            "rank wants a classifier, cls.weight or cls.output.weight, which reranking models such as "
            "bge-reranker-v2-m3 have: there is none; embed compares texts by their embeddings"
        )
    if weights.get("cls"):
        x_OD = rank.activation(g, weights.linear(x_OD, "cls", "cls"))
        norm = weights.get("cls.norm")
        x_OD = x_OD if norm is None else g.layer_norm(x_OD, norm, None, eps, "cls.norm")
    if weights.get("cls.output"):
        x_OD = weights.linear(x_OD, "cls.output", "cls.output")
    return x_OD if rank.last is None else rank.last(g, x_OD)
