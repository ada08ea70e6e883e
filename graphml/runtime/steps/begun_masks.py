"""Masks of structured sequences, computed by threads of their own while a step computes the logits.

Knows sequences and their matchers; nothing of logits or plans. Matchers compute without the interpreter's
lock, all but GBNF's first mask of a state, which the next ones find.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache

from graphml.errors import UsageError
from graphml.runtime.blocks.sequence import Sequence

_N_WORKERS = max(1, min(4, (os.cpu_count() or 1) // 2))


@lru_cache(maxsize=1)
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_N_WORKERS, "graphml-masks")


def begin_masks(sequences: Iterable[Sequence]) -> Callable[[], None]:
    """Begin to compute the masks of those that have matchers; what waits until they are there.

    Errors are found again by those who ask the matcher. Until then nobody else may use the matchers.
    """
    structured = [sequence for sequence in sequences if sequence.matcher is not None]
    if not structured:
        return _nothing
    workers, share = _workers(), -(-len(structured) // _N_WORKERS)
    begun: list[Future[None]] = [
        workers.submit(_compute, structured[start : start + share])
        for start in range(0, len(structured), share)
    ]

    def ready() -> None:
        wait(begun)

    return ready


def _nothing() -> None:
    """No masks were begun."""


def _compute(sequences: Iterable[Sequence]) -> None:
    for sequence in sequences:
        with contextlib.suppress(UsageError):  # raised again where this one's token is sampled
            assert sequence.matcher is not None
            sequence.matcher.catch_up(sequence.ids, sequence.n_generated)
            sequence.matcher.bits()
