"""Perplexity of a text under a model, by the method of llama.cpp's llama-perplexity.

The ids are cut into chunks of n_ctx; each is evaluated in an empty session, its first id replaced by the
begin token if the vocabulary adds one. The first half of a chunk is context only, the second is scored.
Knows ids and logits; nothing of files.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphml.api.session import Session
from graphml.errors import UsageError, WeightsError
from graphml.ir.op import Floats
from graphml.sampling.candidates.logprobs import log_sums
from graphml.sampling.chain.next_logits import no_numbers
from graphml.sampling.chain.sampler import flaw_of

LEAST = 4  # tokens of a chunk
_MOST_LOSS = math.log(sys.float_info.max)  # beyond it the perplexity is no number


@dataclass(frozen=True)
class Perplexity:
    """The estimate after `chunks` of `n_chunks` chunks of `n_ctx` tokens, `count` of them scored.

    error: its standard error.
    """

    value: float
    error: float
    chunks: int
    count: int
    n_ctx: int
    n_chunks: int


def chunk_of(n_ids: int, n_ctx: int | None, most: int) -> int:
    """Tokens of a chunk: as asked for, else 512, or less for a model of `most` or a short text."""
    return min(512, most, max(LEAST, n_ids // 2)) if n_ctx is None else n_ctx


def check_scored(session: Session, n_ctx: int, chunks: int | None) -> None:
    """UsageError for a model, a chunk or a count of chunks that `perplexity` refuses whatever the text."""
    architecture = session._executor.architecture
    if not architecture.causal:
        raise UsageError(
            f"perplexity: in {architecture.name} tokens see those after them: wanted a model that gives each "
            "token a probability by those before it"
        )
    if n_ctx < LEAST:
        raise UsageError(f"n_ctx: wanted at least {LEAST} tokens per chunk, got {n_ctx}")
    if chunks is not None and chunks < 1:
        raise UsageError(f"chunks: wanted at least 1 or None for all, got {chunks}")


def n_chunks_of(session: Session, n_ids: int, n_ctx: int, chunks: int | None) -> int:
    """Chunks of `n_ctx` in a text of `n_ids`, at most `chunks`; see `perplexity` for what is refused."""
    check_scored(session, n_ctx, chunks)
    if n_ids < 2 * LEAST:
        raise UsageError(f"text: wanted at least {2 * LEAST} tokens, got {n_ids}")
    if n_ids < 2 * n_ctx:
        raise UsageError(
            f"n_ctx: wanted at most {n_ids // 2}, half of the text's {n_ids} tokens; got {n_ctx}"
        )
    return n_ids // n_ctx if chunks is None else min(chunks, n_ids // n_ctx)


def perplexity(
    session: Session, ids: Sequence[int], n_ctx: int, chunks: int | None = None, bos: int | None = None
) -> Iterator[Perplexity]:
    """Give the estimate after each chunk of `n_ctx` ids; at most `chunks` of them.

    bos: the id that takes the place of each chunk's first one, None to leave it. Raises UsageError for fewer
    than 2 * n_ctx ids, as llama-perplexity does, an n_ctx below 4, chunks below 1 or a model whose tokens see
    those after them; WeightsError where the model's logits are no numbers, or make the text impossible.
    """
    n_chunks = n_chunks_of(session, len(ids), n_ctx, chunks)
    sums = LossSums(n_ctx, n_chunks)
    for index in range(n_chunks):
        sums.add(chunk_losses(session, ids[index * n_ctx : (index + 1) * n_ctx], bos))
        yield sums.estimate(index + 1)


def chunk_losses(session: Session, chunk: Sequence[int], bos: int | None) -> NDArray[np.float64]:
    """The negative log-likelihoods of a chunk's scored ids; see `perplexity`."""
    parts = [losses(logits, targets) for targets, logits in scored_rows(session, chunk, bos)]
    return np.concatenate(parts)


class LossSums:
    """Negative log-likelihoods of a text's tokens, added up for its `Perplexity`."""

    def __init__(self, n_ctx: int, n_chunks: int) -> None:
        self._n_ctx, self._n_chunks = n_ctx, n_chunks
        self._total, self._squares, self._count = 0.0, 0.0, 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Those of further tokens."""
        self._total += float(values.sum())
        self._squares += float((values**2).sum())
        self._count += len(values)

    def estimate(self, chunks: int) -> Perplexity:
        """The estimate after so many chunks; WeightsError where the text has no probability."""
        mean = self._total / self._count
        if mean > _MOST_LOSS:
            raise WeightsError(
                f"chunk {chunks}: the model gives the text no probability: a mean loss of {mean:.4g} a "
                "token. Its tensors are damaged or not those of this architecture"
            )
        variance = self._squares / self._count - mean**2
        error = math.sqrt(max(variance, 0.0) / max(self._count - 1, 1))
        value = math.exp(mean)
        return Perplexity(value, error * value, chunks, self._count, self._n_ctx, self._n_chunks)


def scored_rows(
    session: Session, chunk: Sequence[int], bos: int | None, rows: int = 256
) -> Iterator[tuple[NDArray[np.integer], Floats]]:
    """Ids of a chunk's second half but its first one, and the logits that predict them.

    Gives ids [n] and logits [n, vocabulary], at most `rows` at a time; see `perplexity` for `bos` and errors.
    """
    ids = list(chunk) if bos is None else [bos, *chunk[1:]]
    session.rewind(0)
    first = len(ids) // 2
    session.eval(ids[:first])
    for start in range(first, len(ids) - 1, rows):
        end = min(start + rows, len(ids) - 1)
        logits = session.eval(ids[start:end], all_logits=True)
        flaw = next((row_flaw for row in logits if (row_flaw := flaw_of(row)) is not None), None)
        if flaw is not None:
            raise WeightsError(no_numbers(session._executor.file.path, flaw))
        yield np.asarray(ids[start + 1 : end + 1]), logits


def losses(logits: Floats, targets: NDArray[np.integer]) -> NDArray[np.float64]:
    """Logits [n, vocabulary] and the ids that really came [n] -> negative log-likelihoods [n]."""
    values: NDArray[np.float64] = log_sums(logits) - logits[np.arange(len(targets)), targets]
    return values
