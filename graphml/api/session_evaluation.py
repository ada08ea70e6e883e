"""A session's evaluation: ids into its cells, and what is known of the token that follows.

A part of `Session` in a file of its own: it works on the session's tokens, programs and meter.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

import numpy as np

from graphml.api.capture import Probe
from graphml.api.stats import Meter
from graphml.api.tokens import NO_IDS
from graphml.backend import Progress
from graphml.ir.op import Array, Floats
from graphml.runtime.committed import Evaluation
from graphml.runtime.evaluation import evaluate, evaluate_top_k, never
from graphml.runtime.executor import Executor
from graphml.sampling import NextLogits, PeekableRandom, SamplingParams

_NO_LOGITS: Floats = np.empty(0, np.float32)


class Evaluating(Protocol):
    """What an evaluation works on: a `Session`."""

    n_vocab: int
    meter: Meter
    numbers: PeekableRandom
    _executor: Executor
    _probe: Probe
    _progress: Progress
    _cancelled: bool
    _finds: bool

    def evaluation(self, ids: Array = NO_IDS) -> Evaluation:
        """Begin to evaluate."""

    def commit(self, done: Evaluation, next_logits: NextLogits, all_logits: bool = False) -> None:
        """It is done."""

    def reads_top_k(self, params: SamplingParams) -> bool:
        """Whether the top k of a row is read."""


def evaluated(
    session: Evaluating, ids: Array, all_logits: bool = False, by: SamplingParams | None = None
) -> Floats:
    """Evaluate the tokens not evaluated yet and `ids`; see `Session.eval` for what comes back.

    by: what the next token is sampled by; an empty array where its top k was read, or after a cancel.
    """
    evaluation, probe = session.evaluation(ids), session._probe
    probe.begin()
    cancelled = (lambda: session._cancelled) if by is not None and len(ids) else never
    sequence = evaluation.sequence
    shared: contextlib.AbstractContextManager[int] = contextlib.nullcontext(0)
    if sequence.shares and session._finds and not all_logits and len(evaluation.waiting) > 1:
        shared = sequence.room.prompt(sequence, evaluation.all_ids, cancelled)
    with shared as n_cached:
        session.meter.n_cached += n_cached
        work = [(sequence, evaluation.waiting[n_cached:])]
        common = work, session.n_vocab, probe.options
        if by is not None and session.reads_top_k(by):
            of_all = [(by, session.numbers)]
            for top in evaluate_top_k(*common, of_all, probe.take, cancelled, session._progress):
                session.commit(evaluation, NextLogits(top), all_logits)
            return _NO_LOGITS
        found = evaluate(*common, all_logits, probe.take, cancelled, session._progress)
        if not found:
            return _NO_LOGITS
        row = found[0][-1] if by is not None else found[0][-1].copy()  # the caller gets its own
        session.commit(evaluation, NextLogits(row), all_logits)
        return found[0][-len(ids) :] if all_logits else found[0][0]
