"""What follows a session's tokens: the logits behind the last one, and a token that is sampled from them.

A part of `Session` in a file of its own: it works on the session's tokens, programs and random numbers.
"""

from __future__ import annotations

from typing import Protocol

from graphml.api.session_evaluation import Evaluating, evaluated
from graphml.api.tokens import NO_IDS
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.runtime.committed import Committed
from graphml.runtime.next_token import next_token
from graphml.runtime.pinned import Pinned
from graphml.sampling import SamplingParams
from graphml.sampling.logprobs import TokenLogprobs
from graphml.sampling.structured.params_structure import Structured


class SampledFrom(Evaluating, Protocol):
    """What a token is sampled from: a `Session`."""

    generated: list[int]
    scores: list[TokenLogprobs]
    _held: Committed
    _structured: Structured

    def sequence(self) -> Pinned:
        """Where the keys and values are."""


def last_logits(session: SampledFrom) -> Floats:
    """See `Session.logits`."""
    session.sequence()
    held = session._held
    if not len(held):
        raise UsageError("logits: wanted a session that holds tokens; evaluate some first")
    row = held.latest.next_logits.whole_row()
    if row is None:
        held.last_waits()
        row = evaluated(session, NO_IDS)
    return row.copy()


def sampled(session: SampledFrom, params: SamplingParams) -> int:
    """See `Session.sample`."""
    session.sequence()
    held = session._held
    if not len(held):
        raise UsageError("sample: wanted a session that holds tokens; evaluate some first")
    if not held.latest.next_logits.known:
        held.last_waits()  # its logits are gone: once more
        evaluated(session, NO_IDS, by=params)
    token = sampled_from_known(session, params)
    if token is None:
        held.last_waits()
        evaluated(session, NO_IDS)
        token = sampled_from_known(session, params)
    assert token is not None
    return token


def sampled_from_known(session: SampledFrom, params: SamplingParams) -> int | None:
    """A token by what is known of it; None where its whole row is needed, and not known."""
    held = session._held
    known, history = held.latest.next_logits, held.history()
    path, matcher = session._executor.file.path, session._structured.matcher(params, session.generated)
    session.scores = []
    return next_token(known, params, history, session.numbers, path, matcher, session.scores)
