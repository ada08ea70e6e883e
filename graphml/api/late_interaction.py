"""Late interaction (ColBERT, Khattab and Zaharia 2020, arXiv:2004.12832): ids of both texts, and scores.

A score is the sum, over the rows of a query, of the largest cosine to a row of the document (MaxSim). Knows
the keys of a file, ids and rows; nothing of engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphml.api.text_rows import cut_ids
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.loading.pooling import LATE
from graphml.runtime.programs.executor import Executor
from graphml.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LateInteraction:
    """How a model reads queries and documents.

    query_prefix, document_prefix: the id behind the first one, -1 for none. query_length, document_length:
    ids at most, with the prefix. expansion: the id that fills a query up to its length, -1 for none; attends:
    whether other tokens see those. skipped: ids of a document that have no row.
    """

    query_prefix: int
    document_prefix: int
    query_length: int
    document_length: int
    expansion: int
    attends: bool
    skipped: frozenset[int]

    def query(self, ids: Sequence[int], tokenizer: Tokenizer, truncate: bool) -> tuple[list[int], int]:
        """The ids of a query, and how many of them, the last, no token sees."""
        own = _begun(ids, self.query_prefix, self.query_length, tokenizer, truncate, "query")
        more = self.query_length - len(own) if self.expansion >= 0 else 0
        return [*own, *[self.expansion] * more], 0 if self.attends else more

    def document(self, ids: Sequence[int], tokenizer: Tokenizer, truncate: bool, name: str) -> list[int]:
        """The ids of a document. name: what an error calls it."""
        return _begun(ids, self.document_prefix, self.document_length, tokenizer, truncate, name)

    def kept(self, ids: Sequence[int], rows: Floats) -> Floats:
        """The rows of a document that count, of those of all its ids."""
        return rows[[id not in self.skipped for id in ids]]


def late_interaction_of(executor: Executor) -> LateInteraction | None:
    """How a model of late interaction reads texts; None for any other model."""
    metadata, name = executor.file.metadata, f"{executor.architecture.name}.{LATE}"
    if not metadata.boolean(name, False):
        return None
    numbers = [
        metadata.integer(f"{name}.{key}", -1)
        for key in (
            "query_prefix_id", "document_prefix_id", "query_length", "document_length", "expansion_id"
        )
    ]  # fmt: skip
    query, document, query_length, document_length, expansion = numbers
    attends = metadata.boolean(f"{name}.attends", False)
    skipped = frozenset(metadata[f"{name}.skipped_ids"])
    late = LateInteraction(query, document, query_length, document_length, expansion, attends, skipped)
    if executor.architecture.causal and late.expansion >= 0:
        raise UsageError(
            f"{executor.file.path}: fills queries up with tokens that see all of them: wanted an encoder, or "
            "do_query_expansion false"
        )
    return late


def max_sim(query: Floats, documents: Sequence[Floats]) -> Floats:
    """The score of each document, float32 [n, 1]; rows have length 1."""
    wide = query.astype(np.float64)
    sums = [(wide @ rows.astype(np.float64).T).max(axis=1).sum() for rows in documents]
    return np.array(sums, np.float32).reshape(-1, 1)


def _begun(
    ids: Sequence[int], prefix: int, most: int, tokenizer: Tokenizer, truncate: bool, name: str
) -> list[int]:
    """Ids with a prefix behind the first one, at most so many."""
    room = most - (prefix >= 0)
    if not ids:
        raise UsageError(f"{name}: wanted a text with tokens")
    if len(ids) > room:
        if not truncate:
            raise UsageError(f"{name}: wanted at most {room} tokens; got {len(ids)}; truncate cuts them")
        ids = cut_ids(ids, room, tokenizer)
    return [*ids[:1], prefix, *ids[1:]] if prefix >= 0 else list(ids)
