"""How an architecture scores a pair of texts. A value alone: `graphml.loading.pooling` makes nodes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphml.ir.language import Builder
from graphml.ir.node import Node


@dataclass(frozen=True)
class Rank:
    """How an architecture scores a pair of texts: pooled, a dense layer and its activation, a projection.

    pooling: the default for files without `classifier.pooling_type`; "": the row of the first token, or of
    the last one for causal attention. last: the operation on the scores.
    """

    pooling: str = ""
    activation: Callable[[Builder, Node], Node] = Builder.tanh
    last: Callable[[Builder, Node], Node] | None = None


PLAIN = Rank()
