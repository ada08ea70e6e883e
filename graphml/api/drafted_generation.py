"""Speculation in a session: its next token from the rows of a draft, as long as that is right.

A part of `Session` in a file of its own: it works on the session's tokens, programs and meter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from graphml.api.session_evaluation import EvaluatedSession
from graphml.errors import UsageError
from graphml.ir.op import Array, Floats
from graphml.runtime.blocks.drafting import DRAFT_ROWS, MOST_AGAIN, Drafts, StepTimes, n_right, worth_rows
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.sessions.evaluation import drafted_logits
from graphml.runtime.steps.draft_steps import draft_program
from graphml.sampling import NextLogits, SamplingParams


def session_drafts(session: EvaluatedSession, drafts: Drafts | None) -> SessionDrafts | None:
    """Those of a generation that has drafts; UsageError as of `SessionDrafts`."""
    _show_hidden(session, False)  # of a generation that was never begun
    return None if drafts is None else SessionDrafts(session, drafts)


def _show_hidden(session: EvaluatedSession, hidden: bool) -> None:
    """Have the session's steps give hidden rows, or not; then it shares none."""
    probe = session._probe
    if probe.options.hidden != hidden:
        probe.options = replace(probe.options, hidden=hidden)
        probe.watch = None
        if hidden:
            session.sequence().share_nothing()


class SessionDrafts:
    """The drafts of one generation. UsageError for a session that captures, whose steps are the caller's."""

    def __init__(self, session: EvaluatedSession, drafts: Drafts) -> None:
        if session._probe.options.keep:
            raise UsageError("spec_type: wanted none for a session that captures or patches values")
        self._drafts, self._times = drafts, StepTimes()
        self._rows: Floats = np.empty((0, 0), np.float32)  # behind the latest id and each of the draft
        self._draft: list[int] = []
        self._at = 0  # tokens held when the latest was sampled
        self._n_rows = min(DRAFT_ROWS, session._executor.n_batch)
        if drafts.reads_hidden:
            _show_hidden(session, True)
            session._probe.watch = self._saw
            self._session = session
        draft_program(session._executor, session._probe.options, 1)

    def token(self, session: EvaluatedSession, params: SamplingParams, most: int) -> int:
        """The id that follows; `most` ids may follow it."""
        held = session._held
        begin = time.perf_counter()
        n_rows = 0
        draft, rows, self._draft = self._draft, self._rows, []
        came = held.latest.ids[self._at : len(held)]  # one that was sampled, and forced ones
        self._at = len(held)
        n = n_right(draft, came)
        if n and n == len(came) and held.has_cells(len(held)):
            held.evaluated(held.latest, NextLogits(rows[n]))
            session.meter.n_accepted += n
            self._draft, self._rows = draft[n:], rows[n:]
        elif held.latest.next_logits.known or held.latest.n_evaluated != len(held) - 1:
            return session.sampled(params)
        else:
            held.rolled_back()  # recurrent states go back to before a draft that was wrong
            again = len(held) - 1 - held.latest.n_evaluated
            proposed = self._proposed(session, params, most, again) if again <= MOST_AGAIN else []
            if not proposed and not 0 < again < self._n_rows:
                token = session.sampled(params)
                self._times.measured(again + 1, time.perf_counter() - begin)
                return token
            n_rows = again + 1 + len(proposed)
            evaluation = session.evaluation()
            ids = np.concatenate([evaluation.waiting, np.array(proposed, np.int32)])
            probe = session._probe
            logits = drafted_logits(evaluation.sequence, ids, again, probe.options, probe.watch)
            held.evaluated(held.latest, NextLogits(logits[again]))
            session.meter.n_drafted += len(proposed)
            self._draft, self._rows = proposed, logits[again:]
        chosen = session.sampled_from_known(params)
        assert chosen is not None  # its whole row is known
        if n_rows:
            self._times.measured(n_rows, time.perf_counter() - begin)
        return chosen

    def _proposed(
        self, session: EvaluatedSession, params: SamplingParams, most: int, again: int
    ) -> list[int]:
        executor = session._executor
        room = min(self._n_rows - again, session.n_ctx - len(session._held)) - 1
        matcher = session._structured.matcher(params, session.generated)
        draft = self._drafts.propose(session._held.history(), min(room, most), matcher)
        n_again = again if executor.recurrent else None
        (draft,) = worth_rows([(self._drafts, draft)], self._times, self._n_rows, n_again)
        if not draft:
            return []
        with executor.lock:
            return draft if session.sequence().keep_before_draft() else []

    def _saw(self, outputs: Mapping[str, Array]) -> None:
        rows = outputs[HIDDEN]
        self._drafts.saw(self._session._held.n_cells - len(rows), rows)

    def close(self) -> None:
        """No token is wanted any more."""
        if self._drafts.reads_hidden and self._session._probe.watch == self._saw:
            _show_hidden(self._session, False)  # else they are another generation's
        self._drafts.drafter.close()
