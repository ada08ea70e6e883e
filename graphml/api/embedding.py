"""Texts to embeddings: many short ones share a step, each a sequence of its own, and none is kept.

Knows ids, steps and rows; what pooling means is `graphml.loading.pooling`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from graphml.argument_checks import items_of, text_of
from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.loading.pooling import POOLINGS
from graphml.runtime.evaluation import Floats
from graphml.runtime.executor import Executor
from graphml.runtime.slots import make_slots

TOGETHER = 8
"""Texts of one step at most."""


def chosen_pooling(executor: Executor, pooling: str | None) -> str:
    """The pooling that is asked for, else the file's; UsageError for an unknown one, or if there is none."""
    if pooling is not None and pooling not in POOLINGS:
        raise UsageError(f"pooling: wanted one of {', '.join(POOLINGS)}; got {pooling!r}")
    found = pooling or executor.pooling
    if found == "none":
        raise UsageError(
            f"pooling: {executor.file.path} says none, which gives no row for a text as a whole: "
            "choose mean, cls (the first token's) or last, or see embed_tokens"
        )
    return found


def texts_of(texts: str | Sequence[str]) -> list[str]:
    """One text or several as a list; UsageError for what is no text."""
    if isinstance(texts, str):
        return [texts]
    every = items_of("texts", texts, "a text or a sequence of texts")
    return [text_of(f"texts[{i}]", one) for i, one in enumerate(every)]


def embed_ids(
    executor: Executor,
    texts: Sequence[Sequence[int]],
    pooling: str,
    progress: Progress = no_progress,
) -> list[Floats]:
    """The embeddings of each text's ids, float32 [rows, d]: one row, with the pooling `none` one for each id.

    UsageError for a text without ids or of more than n_batch: all of a text takes part in one step.
    """
    if executor.encodes:
        raise UsageError(
            f"{executor.file.path}: {executor.architecture.name} answers texts and embeds none: wanted its "
            "encoder alone, as a file of the architecture t5encoder has it, or a decoder alone"
        )
    limit = min(executor.n_batch, executor.config.n_ctx)
    for i, ids in enumerate(texts):
        if not 0 < len(ids) <= limit:
            which = "n_batch" if executor.n_batch < executor.config.n_ctx else "the model's context"
            raise UsageError(f"texts[{i}]: wanted 1 to {limit} tokens ({which}); got {len(ids)}")
    together = min(TOGETHER, len(texts), executor.n_batch)
    if not together:
        return []
    options = replace(executor.options, pooling=pooling)
    slots = make_slots(executor, options, limit, together)
    cache, state = slots[0].cache, slots[0].state
    found: list[Floats] = []
    tell = progress if len(texts) > together else no_progress
    for first, count in _steps([len(ids) for ids in texts], together, executor.n_batch):
        tell("embed", first, len(texts))
        given = {i: np.asarray(texts[first + i], np.int32) for i in range(count)}
        with executor.lock:  # the rows are the executor's until the next step
            rows = executor.values(given, cache, state, options=options)["embeddings"]
            found += _shared_out(rows, [len(ids) for ids in given.values()], pooling)
        for slot in slots:
            slot.rewind(0)
    tell("embed", len(texts), len(texts))
    return found


def _steps(lengths: Sequence[int], together: int, n_batch: int) -> Iterator[tuple[int, int]]:
    """The first text of each step and how many it has."""
    first = 0
    while first < len(lengths):
        count, total = 0, 0
        while first + count < len(lengths) and count < together and total + lengths[first + count] <= n_batch:
            total += lengths[first + count]
            count += 1
        yield first, count
        first += count


def _shared_out(rows: Floats, lengths: Sequence[int], pooling: str) -> list[Floats]:
    """Each text's rows, the caller's own."""
    each = lengths if pooling == "none" else [1] * len(lengths)
    return [part.copy() for part in np.split(rows[: sum(each)], np.cumsum(each)[:-1])]


def normalized(rows: Floats) -> Floats:
    """Rows brought to length 1; zeros stay."""
    length = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1.0), np.float32)
