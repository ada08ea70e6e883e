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
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphml.api.session import Session
from graphml.errors import UsageError, WeightsError
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


def perplexity(
    session: Session, ids: Sequence[int], n_ctx: int, chunks: int | None = None, bos: int | None = None
) -> Iterator[Perplexity]:
    """Give the estimate after each chunk of `n_ctx` ids; at most `chunks` of them.

    bos: the id that takes the place of each chunk's first one, None to leave it. Raises UsageError for fewer
    than 2 * n_ctx ids, as llama-perplexity does, an n_ctx below 4, chunks below 1 or a model whose tokens see
    those after them; WeightsError where the model's logits are no numbers, or make the text impossible.
    """
    architecture = session._executor.architecture
    if not architecture.causal:
        raise UsageError(
            f"perplexity: in {architecture.name} tokens see those after them: wanted a model that gives each "
            "token a probability by those before it"
        )
    if n_ctx < LEAST:
        raise UsageError(f"n_ctx: wanted at least {LEAST} tokens per chunk, got {n_ctx}")
    if len(ids) < 2 * LEAST:
        raise UsageError(f"text: wanted at least {2 * LEAST} tokens, got {len(ids)}")
    if len(ids) < 2 * n_ctx:
        raise UsageError(
            f"n_ctx: wanted at most {len(ids) // 2}, half of the text's {len(ids)} tokens; got {n_ctx}"
        )
    if chunks is not None and chunks < 1:
        raise UsageError(f"chunks: wanted at least 1 or None for all, got {chunks}")
    n_chunks = len(ids) // n_ctx if chunks is None else min(chunks, len(ids) // n_ctx)
    total, squares, count = 0.0, 0.0, 0
    for index in range(n_chunks):
        chunk = list(ids[index * n_ctx : (index + 1) * n_ctx])
        losses = _losses(session, chunk if bos is None else [bos, *chunk[1:]])
        total += float(losses.sum())
        squares += float((losses**2).sum())
        count += len(losses)
        mean = total / count
        if mean > _MOST_LOSS:
            raise WeightsError(
                f"chunk {index + 1}: the model gives the text no probability: a mean loss of {mean:.4g} a "
                "token. Its tensors are damaged or not those of this architecture"
            )
        variance = squares / count - mean**2
        error = math.sqrt(max(variance, 0.0) / max(count - 1, 1))
        yield Perplexity(math.exp(mean), error * math.exp(mean), index + 1, count, n_ctx, n_chunks)


def _losses(session: Session, chunk: list[int], rows: int = 256) -> NDArray[np.float64]:
    """Negative log-likelihoods of the second half's tokens but the first; `rows` logits at a time."""
    session.rewind(0)
    first = len(chunk) // 2
    session.eval(chunk[:first])
    parts = []
    for start in range(first, len(chunk) - 1, rows):
        end = min(start + rows, len(chunk) - 1)
        logits = session.eval(chunk[start:end], all_logits=True)
        path = session._executor.file.path
        parts.append(_loss(logits, np.asarray(chunk[start + 1 : end + 1]), path))
    return np.concatenate(parts)


def _loss(logits: NDArray[np.float32], targets: NDArray[np.integer], path: Path) -> NDArray[np.float64]:
    """Logits [n, vocabulary] and the ids that really came [n] -> negative log-likelihoods [n]."""
    flaw = next((row_flaw for row in logits if (row_flaw := flaw_of(row)) is not None), None)
    if flaw is not None:
        raise WeightsError(no_numbers(path, flaw))
    losses: NDArray[np.float64] = log_sums(logits) - logits[np.arange(len(targets)), targets]
    return losses
