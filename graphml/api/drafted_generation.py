"""Speculation in a session: its next token from the rows of a draft, as long as that is right.

A part of `Session` in a file of its own: it works on the session's tokens, programs and meter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from graphml.api.session_sampling import SampledFrom, sampled, sampled_from_known
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.draft_steps import draft_program, drafted_logits
from graphml.runtime.drafting import DRAFT_ROWS, Drafts, StepTimes, draft_lengths
from graphml.runtime.evaluation import Floats
from graphml.runtime.model_graphs import HIDDEN
from graphml.sampling import NextLogits, SamplingParams


class Drafting(SampledFrom, Protocol):
    """What it works on: a `Session`."""

    n_ctx: int


def session_drafts(session: Drafting, drafts: Drafts | None) -> SessionDrafts | None:
    """Those of a generation that has drafts; UsageError as of `SessionDrafts`."""
    _show_hidden(session, False)  # of a generation that was never begun
    return None if drafts is None else SessionDrafts(session, drafts)


def _show_hidden(session: Drafting, hidden: bool) -> None:
    """Have the session's steps give hidden rows, or not; then it shares none."""
    probe = session._probe
    if probe.options.hidden != hidden:
        probe.options = replace(probe.options, hidden=hidden)
        probe.watch = None
        if hidden:
            session.slot().leave_group()


class SessionDrafts:
    """The drafts of one generation. UsageError for a session that captures, whose steps are the caller's."""

    def __init__(self, session: Drafting, drafts: Drafts) -> None:
        if session._probe.options.keep:
            raise UsageError("spec_type: wanted none for a session that captures or patches values")
        self._drafts, self._times = drafts, StepTimes()
        self._rows: Floats = np.empty((0, 0), np.float32)  # behind the draft's ids, first to last
        self._draft: list[int] = []
        self._at = 0  # tokens held when the latest was sampled
        if drafts.reads_hidden:
            _show_hidden(session, True)
            session._probe.watch = self._saw
            self._session = session
        draft_program(session._executor, session._probe.options, 1)

    def token(self, session: Drafting, params: SamplingParams, most: int) -> int:
        """The id that follows; `most` ids may follow it."""
        held = session._held
        begin = time.perf_counter()
        n_rows = 0
        draft, rows, self._draft = self._draft, self._rows, []
        came = held.latest.ids[self._at : len(held)]  # one that was sampled, and forced ones
        self._at = len(held)
        n = len(came)
        if 0 < n <= len(draft) and came == draft[:n] and held.has_cells(len(held)):
            held.evaluated(held.latest, NextLogits(rows[n - 1]))
            session.meter.n_accepted += n
            self._draft, self._rows = draft[n:], rows[n:]
        elif held.latest.next_logits.known or held.latest.n_evaluated != len(held) - 1:
            return sampled(session, params)
        elif found := self._proposed(session, params, most):
            n_rows = 1 + len(found)
            evaluation = session.evaluation()
            ids = np.concatenate([evaluation.waiting, np.array(found, np.int32)])
            probe = session._probe
            logits = drafted_logits(session._executor, evaluation.slot, ids, probe.options, probe.take)
            held.evaluated(held.latest, NextLogits(logits[0]))
            session.meter.n_drafted += len(found)
            self._draft, self._rows = found, logits[1:]
        else:
            token, n_rows = sampled(session, params), 1
            self._times.measured(n_rows, time.perf_counter() - begin)
            return token
        chosen = sampled_from_known(session, params)
        assert chosen is not None  # its whole row is known
        if n_rows:
            self._times.measured(n_rows, time.perf_counter() - begin)
        return chosen

    def _proposed(self, session: Drafting, params: SamplingParams, most: int) -> list[int]:
        room = min(DRAFT_ROWS, session._executor.n_batch, session.n_ctx - len(session._held)) - 1
        matcher = session._structured.matcher(params, session.generated)
        found = self._drafts.propose(session._held.history(), min(room, most), matcher)
        if not found:
            return []
        (count,) = draft_lengths(1, [(len(found), self._drafts.rate)], self._times.of)
        self._drafts.used(count)
        return found[:count] if count >= self._drafts.n_min else []

    def _saw(self, outputs: Mapping[str, Array]) -> None:
        rows = outputs[HIDDEN]
        self._drafts.saw(self._session._held.n_cells - len(rows), rows)

    def close(self) -> None:
        """No token is wanted any more."""
        if self._drafts.reads_hidden and self._session._probe.watch == self._saw:
            _show_hidden(self._session, False)  # else they are another generation's
        self._drafts.drafter.close()
