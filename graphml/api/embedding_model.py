"""Texts to embeddings and scores, as methods of a model.

Knows arguments and rows; nothing of sessions, engines of requests or conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphml.api.inspected_model import InspectedModel
from graphml.api.keywords import hinted
from graphml.api.late_interaction import late_interaction_of, max_sim
from graphml.api.text_prompts import prompt_of
from graphml.api.text_rows import (
    TOGETHER,
    Cancellation,
    TextEngines,
    chosen_pooling,
    cut_rows,
    normalized,
    pair_ids,
    texts_of,
)
from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.loading.pooling import POOLINGS
from graphml.runtime.programs.executor import Executor


class EmbeddingModel(InspectedModel):
    """A model whose rows of texts are read. progress: called for many texts, as of `load`."""

    def __init__(
        self,
        executor: Executor,
        path: Path,
        pre: str | None = None,
        template: str | None = None,
        progress: Progress = no_progress,
    ) -> None:
        super().__init__(executor, path, pre, template)
        self._progress = progress
        self._texts = TextEngines(executor)

    @hinted
    def embed(
        self,
        texts: str | Sequence[str],
        pooling: str | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> Floats:
        """The embedding of a text, float32 [d], or of each of several, [n, d].

        pooling: what the rows of a text's tokens become: `mean`, `cls` (the first), `last`, or `rank`, the
        scores of a classifier; None: what the file says, else `last` of a decoder. Any model does it, by the
        rows that its logits are made of. normalize: bring rows, not scores, to length 1. prompt_name: which
        prompt is put before each text, of a folder of sentence-transformers or of the model's family, as
        "query" and "document"; None: the folder's default one, if any. prompt: the text that is put there.
        dimensions: only so many numbers of a row, the first ones, before it is brought to length 1.
        A text must have at most `n_batch` tokens. UsageError for other arguments, or an encoder whose file
        says nothing of pooling; TokenizerError without a vocabulary.
        """
        self._open()
        chosen = chosen_pooling(self.executor, pooling)
        before = self.text_prompt(prompt_name, prompt)
        rows = self._embedded([self.encode(before + text) for text in texts_of(texts)], chosen)
        rows = cut_rows(rows, dimensions, chosen)
        rows = normalized(rows) if normalize and chosen != "rank" else rows
        return rows[0] if isinstance(texts, str) else rows

    def text_prompt(self, name: str | None = None, prompt: str | None = None) -> str:
        """What `embed` puts before texts, by its arguments `prompt_name` and `prompt`; errors as of it."""
        before = prompt_of(self.executor, name, prompt)
        if before and self.encode(before) != self.encode(before, parse_special=True):
            raise UsageError(f"{self.path}: prompt {before[:80]!r} spells control tokens: wanted text alone")
        return before

    def embed_tokens(self, text: str) -> Floats:
        """The embedding of each of a text's tokens, float32 [tokens, d]."""
        self._open()
        return self._embedded([self.encode(text)], "none")

    @hinted
    def rank(self, query: str, texts: str | Sequence[str], *, truncate: bool = False) -> Floats:
        """How well texts answer a query, float32 [n, scores], or one [scores]: by a model's classifier.

        Query and text are together in one sequence, as llama.cpp joins them. A model of late interaction has
        one score, the sum over the query's rows of the largest cosine to a row of the text (MaxSim);
        truncate: its queries and texts are cut to their lengths, not refused. Errors as of `embed`.
        """
        self._open()
        tokenizer, every = self._needed(), texts_of(texts)
        if late_interaction_of(self.executor) is not None:
            (asked,) = self.token_rows(query, query=True, truncate=truncate)
            rows = max_sim(asked, self.token_rows(every, truncate=truncate))
        elif truncate:
            raise UsageError(
                f"truncate: {self.path}: wanted a model of late interaction; a pair is never cut"
            )
        else:
            pairs = [pair_ids(self.executor, tokenizer, query, text) for text in every]
            rows = self._embedded(pairs, "rank")
        return rows[0] if isinstance(texts, str) else rows

    @hinted
    def token_rows(
        self,
        texts: str | Sequence[str],
        *,
        query: bool = False,
        truncate: bool = False,
        cancellation: Cancellation | None = None,
    ) -> list[Floats]:
        """The rows of each text's tokens that a model of late interaction compares, float32 [rows, d].

        They have length 1. query: texts are queries, with their prefix and filled up to their length; else
        documents, without the rows of punctuation, as the folder says. truncate: longer texts are cut, not
        refused; cancellation: as of `embed_ids`. UsageError for a model of another kind; else errors as of
        `embed`.
        """
        self._open()
        tokenizer, late = self._needed(), late_interaction_of(self.executor)
        if late is None:
            raise UsageError(f"{self.path}: wanted a model of late interaction, such as ColBERT's; see embed")
        every = [self.encode(text) for text in texts_of(texts)]
        if not query:
            ids = [late.document(own, tokenizer, truncate, f"texts[{i}]") for i, own in enumerate(every)]
            rows = self.embed_ids(ids, "none", cancellation=cancellation)
            return [normalized(late.kept(own, of)) for own, of in zip(ids, rows, strict=True)]
        rows = []
        for own in every:  # queries of one step have as many unseen tokens
            asked, n_unseen = late.query(own, tokenizer, truncate)
            rows += self._texts.rows([asked], "none", cancellation=cancellation, n_unseen=n_unseen)
        return [normalized(of) for of in rows]

    def _embedded(self, ids: list[list[int]], pooling: str) -> Floats:
        rows = self.embed_ids(ids, pooling)
        return np.concatenate(rows) if rows else np.empty((0, 0), np.float32)

    def embed_ids(
        self,
        texts: Sequence[Sequence[int]],
        pooling: str,
        *,
        cancellation: Cancellation | None = None,
        progress: Progress | None = None,
    ) -> list[Floats]:
        """The rows of each text's ids, float32 [rows, d]: one, with the pooling `none` one for each id.

        Texts of several threads share steps; cancellation: ends these. progress: in place of the model's.
        Errors as of `embed`.
        """
        self._open()
        if pooling not in (*POOLINGS, "none"):
            raise UsageError(f"pooling: wanted one of {', '.join(POOLINGS)} or none; got {pooling!r}")
        shown = progress or (self._progress if len(texts) > TOGETHER else no_progress)
        return self._texts.rows(texts, pooling, shown, cancellation)

    def _open(self) -> None:
        if self.executor.closed:
            raise UsageError(f"{self.path}: the model was closed")
        self.executor.programs.check_file()
