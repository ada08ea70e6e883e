"""Methods of `Model` for texts that become rows: embeddings and scores. Their arguments, checked.

Knows arguments and rows; nothing of steps. What pooling means is `graphml.loading.pooling`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graphml.api.text_rows import TOGETHER, TextEngines
from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.loading.pooling import POOLINGS
from graphml.options.argument_checks import items_of, text_of
from graphml.runtime.programs.executor import Executor
from graphml.text.tokenizer import Tokenizer


class Embeds(Protocol):
    """What these methods are a part of: a `Model`."""

    executor: Executor
    _texts: TextEngines
    _progress: Progress

    def encode(self, text: str) -> list[int]:
        """See `Model`."""

    def embed_ids(self, texts: Sequence[Sequence[int]], pooling: str) -> list[Floats]:
        """See `EmbeddingMethods`."""

    def _open(self) -> None: ...
    def _needed(self) -> Tokenizer: ...
    def _embedded(self, ids: list[list[int]], pooling: str) -> Floats: ...


class EmbeddingMethods:
    """A part of `Model` in a file of its own."""

    def embed(
        self: Embeds, texts: str | Sequence[str], pooling: str | None = None, normalize: bool = False
    ) -> Floats:
        """The embedding of each text, float32 [n, d]; of one text [1, d].

        pooling: what the rows of a text's tokens become: `mean`, `cls` (the first), `last`, or `rank`, the
        scores of a classifier; None: what the file says. Any model does it, by the rows that its logits are
        made of. normalize: bring rows to length 1. A text must have at most `n_batch` tokens. UsageError for
        other arguments, or a file that says nothing of pooling; TokenizerError without a vocabulary.
        """
        self._open()
        chosen = chosen_pooling(self.executor, pooling)
        rows = self._embedded([self.encode(text) for text in texts_of(texts)], chosen)
        return normalized(rows) if normalize and chosen != "rank" else rows

    def embed_tokens(self: Embeds, text: str) -> Floats:
        """The embedding of each of a text's tokens, float32 [tokens, d]."""
        self._open()
        return self._embedded([self.encode(text)], "none")

    def rank(self: Embeds, query: str, texts: str | Sequence[str]) -> Floats:
        """How well each text answers a query, float32 [n, scores]: by the classifier of a reranking model.

        Query and text are together in one sequence, as llama.cpp joins them. Errors as of `embed`.
        """
        self._open()
        return self._embedded([self._needed().pair(query, text) for text in texts_of(texts)], "rank")

    def _embedded(self: Embeds, ids: list[list[int]], pooling: str) -> Floats:
        rows = self.embed_ids(ids, pooling)
        return np.concatenate(rows) if rows else np.empty((0, 0), np.float32)

    def embed_ids(self: Embeds, texts: Sequence[Sequence[int]], pooling: str) -> list[Floats]:
        """The rows of each text's ids, float32 [rows, d]: one, with the pooling `none` one for each id.

        Texts of several threads share steps. Errors as of `embed`.
        """
        self._open()
        return self._texts.rows(texts, pooling, self._progress if len(texts) > TOGETHER else no_progress)


def chosen_pooling(executor: Executor, pooling: str | None) -> str:
    """The pooling that is asked for, else the file's; UsageError for an unknown one, or if there is none."""
    if pooling is not None and pooling not in POOLINGS:
        raise UsageError(f"pooling: wanted one of {', '.join(POOLINGS)}; got {pooling!r}")
    chosen = pooling or executor.pooling
    if chosen == "none":
        raise UsageError(
            f"pooling: {executor.file.path} says none, which gives no row for a text as a whole: "
            "choose mean, cls (the first token's) or last, or see embed_tokens"
        )
    return chosen


def texts_of(texts: str | Sequence[str]) -> list[str]:
    """One text or several as a list; UsageError for what is no text."""
    if isinstance(texts, str):
        return [texts]
    every = items_of("texts", texts, "a text or a sequence of texts")
    return [text_of(f"texts[{i}]", text) for i, text in enumerate(every)]


def normalized(rows: Floats) -> Floats:
    """Rows brought to length 1; zeros stay."""
    length = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1.0), np.float32)
