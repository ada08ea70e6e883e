"""Perplexity of a text by overlapping chunks, as llama-perplexity's `--ppl-stride` counts it.

Each chunk begins a stride behind the one before it and is evaluated by itself; its last ids, a stride of
them, are scored, so that each id is scored once, behind nearly a whole chunk. Knows models and ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from graphml.api.model import Model
from graphml.api.perplexity import LossSums, Perplexity
from graphml.errors import UsageError
from graphml.workshop.likelihoods import log_likelihoods

_ROUNDED = 256  # tokens, to whole ones of which llama.cpp rounds a context up


def strided_chunk(n_ctx: int, stride: int) -> int:
    """Tokens of a chunk: n_ctx and half a stride, rounded up to 256 as llama.cpp's contexts are."""
    return -(-(n_ctx + stride // 2) // _ROUNDED) * _ROUNDED


def strided(
    model: Model, ids: Sequence[int], n_ctx: int, stride: int, chunks: int | None = None
) -> Iterator[Perplexity]:
    """Give the estimate after each chunk, at most `chunks` of them. No begin token is put before a chunk.

    UsageError for a text of less than two chunks, a chunk that the model's context has no room for, or a
    stride that is not below a chunk; WeightsError as of `api.perplexity`.
    """
    chunk = strided_chunk(n_ctx, stride)
    if not 0 < stride < chunk:
        raise UsageError(f"stride: wanted 1 to {chunk - 1}, below a chunk's tokens; got {stride}")
    if len(ids) < 2 * chunk:
        raise UsageError(f"text: wanted at least {2 * chunk} tokens, two chunks of {chunk}; got {len(ids)}")
    if chunk >= model.n_ctx:
        raise UsageError(
            f"n_ctx: wanted chunks below the model's context of {model.n_ctx} tokens; got {chunk}: {n_ctx} "
            f"and half a stride, rounded up to {_ROUNDED}"
        )
    most = -(-(len(ids) - chunk) // stride)
    n_chunks = most if chunks is None else min(chunks, most)
    begins = [index * stride for index in range(n_chunks)]
    pairs = [(ids[at : at + chunk - stride], ids[at + chunk - stride : at + chunk]) for at in begins]
    sums = LossSums(chunk, n_chunks)
    for index, likelihood in enumerate(log_likelihoods(model, pairs)):
        sums.add(-np.asarray(likelihood.logprobs))
        yield sums.estimate(index + 1)
