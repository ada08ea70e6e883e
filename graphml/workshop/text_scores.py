"""Perplexity of a text beside a base model's: writes the base's log-probabilities, and compares with them.

Knows sessions, ids and the file of the base; nothing of statistics or commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from graphml.api.perplexity import LossSums, Perplexity, check_scored, losses, n_chunks_of, scored_rows
from graphml.api.session import Session
from graphml.errors import UsageError
from graphml.workshop.base_logits import BaseLogits, writing_base
from graphml.workshop.divergence import Divergence, compare_rows


def write_base(
    session: Session,
    ids: Sequence[int],
    n_ctx: int,
    path: Path,
    chunks: int | None = None,
    bos: int | None = None,
) -> Iterator[Perplexity]:
    """As `perplexity`, and keep all log-probabilities in a file, whole or not at all."""
    n_chunks = n_chunks_of(session, len(ids), n_ctx, chunks)
    sums = LossSums(n_ctx, n_chunks)
    table = np.asarray(ids[: n_chunks * n_ctx], np.int32).reshape(n_chunks, n_ctx)
    with writing_base(path, table, session.n_vocab) as writer:
        for index, chunk in enumerate(table):
            for targets, logits in scored_rows(session, chunk.tolist(), bos):
                sums.add(losses(logits, targets))
                writer.add(logits)
            yield sums.estimate(index + 1)


def divergences(
    session: Session, base: BaseLogits, chunks: int | None = None, bos: int | None = None
) -> Iterator[Divergence]:
    """What the session's model says to the base's text, after each of its chunks, at most `chunks`.

    UsageError where the base has another vocabulary.
    """
    if base.n_vocab != session.n_vocab:
        raise UsageError(
            f"{base.path}: is of a vocabulary of {base.n_vocab} words; the model has {session.n_vocab}"
        )
    check_scored(session, base.n_ctx, chunks)
    compared = Divergence()
    for index in range(len(base.ids) if chunks is None else min(chunks, len(base.ids))):
        begin = 0
        for targets, logits in scored_rows(session, base.ids[index].tolist(), bos):
            end = begin + len(targets)
            compared.add(compare_rows(logits, base.log_probs(index, begin, end), targets))
            begin = end
        yield compared
