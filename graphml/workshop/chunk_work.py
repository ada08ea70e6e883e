"""Chunks of a text as tasks that any process can do: see `graphml.cluster.spread_work`.

Knows models, ids and what is measured; nothing of where it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphml.api.model import Model
from graphml.api.perplexity import LossSums, Perplexity, chunk_losses, n_chunks_of
from graphml.workshop.importance import Importance, importance


@dataclass(frozen=True)
class Chunk:
    """Ids of a chunk; bos: the id that takes the place of the first one; output: the output matrix too."""

    ids: tuple[int, ...]
    bos: int | None
    output: bool = False


def chunks_of(
    ids: Sequence[int], n_ctx: int, first: int, last: int, bos: int | None, output: bool = False
) -> list[Chunk]:
    """Chunks `first` to `last` of n_ctx ids each."""
    return [Chunk(tuple(ids[i * n_ctx : (i + 1) * n_ctx]), bos, output) for i in range(first, last)]


def chunk_importance(model: Model, chunk: Chunk) -> Importance:
    """What a chunk's products read."""
    (seen,) = importance(model, chunk.ids, len(chunk.ids), 1, chunk.bos, chunk.output)
    return seen


def scored_chunk(model: Model, chunk: Chunk) -> NDArray[np.float64]:
    """Losses of a chunk's second half; see `graphml.api.perplexity`."""
    with model.session(len(chunk.ids)) as session:
        return chunk_losses(session, chunk.ids, chunk.bos)


Spread = Callable[[Callable[[Model, Chunk], object], Sequence[Chunk]], Iterable[object]]
"""Does a function's work on each chunk elsewhere; results in order."""


def spread_importance(
    spread: Spread, ids: Sequence[int], n_ctx: int, n_chunks: int, bos: int | None, output: bool,
    begun: Importance | None = None,
) -> Iterator[Importance]:  # fmt: skip
    """As `importance`, by other processes: the same numbers, added up in the same order."""
    seen = Importance(chunk_size=n_ctx) if begun is None else begun
    for part in spread(chunk_importance, chunks_of(ids, n_ctx, seen.n_chunks, n_chunks, bos, output)):
        assert isinstance(part, Importance)
        seen.add_all(part)
        yield seen


def spread_perplexity(
    spread: Spread, model: Model, ids: Sequence[int], n_ctx: int, chunks: int | None, bos: int | None
) -> Iterator[Perplexity]:
    """As `perplexity`, by other processes: the same numbers, added up in the same order."""
    with model.session(n_ctx) as session:
        n_chunks = n_chunks_of(session, len(ids), n_ctx, chunks)
    sums = LossSums(n_ctx, n_chunks)
    for number, losses in enumerate(spread(scored_chunk, chunks_of(ids, n_ctx, 0, n_chunks, bos))):
        sums.add(np.asarray(losses))
        yield sums.estimate(number + 1)
