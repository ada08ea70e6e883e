"""A session's generation: token after token until something ends it; a full context ends it, or is shifted.

With drafts, a token comes from the rows of one as long as that is right. It works on the session's tokens,
programs and meter; knows nothing of who drafts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from graphml.api.denoising import DEFAULT_LENGTH, answer_length, check_kind, denoised_answer, denoiser_of
from graphml.api.draft_choice import drafts_for
from graphml.api.session_evaluation import EvaluatedSession, used_meanwhile
from graphml.api.tokens import GeneratedText, Ids, StopReason, Token, check_stop, checked_ids
from graphml.errors import UsageError
from graphml.ir.op import Array, Floats
from graphml.options.argument_checks import count_or_none
from graphml.runtime.blocks.drafting import MOST_AGAIN, Drafts, n_right
from graphml.runtime.blocks.overflow import Overflow, n_dropped
from graphml.runtime.loop.speculation import Speculation
from graphml.runtime.plans.prompt_scores import score_of
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.sessions.committed import check_room
from graphml.runtime.sessions.evaluation import drafted_logits
from graphml.runtime.steps.cell_mover import check_shifts
from graphml.runtime.steps.draft_steps import draft_program
from graphml.runtime.steps.sequence_cells import SequenceCells
from graphml.sampling import NextLogits, SamplingParams
from graphml.sampling.structured.params_structure import Structured


@dataclass(frozen=True)
class GenerationLimits:
    """What ends a generation besides its tokens. max_tokens: None for no limit; kept: what a shift keeps."""

    n_ctx: int
    max_tokens: int | None
    full: Overflow
    kept: int

    def more(self, n_gen: int) -> int:
        """How many tokens may be generated behind so many."""
        return self.n_ctx if self.max_tokens is None else self.max_tokens - n_gen

    def reason(self, n_past: int, n_gen: int) -> StopReason | None:
        """Why it ends with so many tokens held and generated; None where it goes on."""
        if self.max_tokens is not None and n_gen >= self.max_tokens:
            return "length"
        return "context" if n_past >= self.n_ctx and not self.full.shifts else None


def _limits(
    session: EvaluatedSession, full: Overflow, max_tokens: int | None, ids: Array
) -> GenerationLimits:
    """The limits of a generation that appends ids; ContextFullError where they have no room."""
    executor, tokenizer = session._executor, session._tokenizer
    n_past, n_ctx = len(session._held), session.n_ctx
    if full.shifts:
        check_shifts(executor, "overflow")
    n_given = 0 if executor.encodes else len(ids)
    first = [*session._held.history()[:1], *ids[:1]][:1]
    begins = tokenizer is not None and bool(first) and int(first[0]) == tokenizer.bos
    kept = full.kept(n_past + n_given, begins, n_ctx)
    if full.shifts:
        n_dropped(n_past, kept, n_given, n_ctx)
    else:
        check_room(n_ctx, n_past, n_given)
    return GenerationLimits(n_ctx, max_tokens, full, kept)


def generation(
    session: EvaluatedSession,
    ids: Ids,
    params: SamplingParams,
    max_tokens: int | None,
    overflow: str,
    keep: int,
    new: bool,
) -> Generator[Token, None, None]:
    """Evaluate ids, then give tokens; see `Session.generate`. Begun now, not when the first is asked for."""
    executor, tokenizer = session._executor, session._tokenizer
    if not executor.denoises:
        executor.check_continues()
    check_kind(executor, params, session._probe.options)
    checked = checked_ids(ids, session.n_vocab)
    if not len(checked) and not len(session._held) and not session.source:
        raise UsageError("ids: wanted at least one token id, got none, and the session holds none")
    most = count_or_none("max_tokens", max_tokens)
    check_stop(tokenizer, params)
    if executor.denoises:
        return _denoised(session, checked, params, most, Overflow(overflow, keep), new)
    limits = _limits(session, Overflow(overflow, keep), most, checked)
    structured = Structured(params, tokenizer)
    drafts_of = drafts_for(params, executor, session._draft, session.n_ctx)
    _show_hidden(session, False)  # of a generation that was never begun
    drafts = None if drafts_of is None else SessionDrafts(session, drafts_of)
    session.new_use(new)
    session.meter.drafts = drafts_of
    session.chooses, session._structured = params, structured
    tokens = _generated(session, checked, params, limits, drafts, session._turn)
    return tokens if drafts is None else _closing(tokens, drafts)


def _denoised(
    session: EvaluatedSession,
    ids: Array,
    params: SamplingParams,
    max_tokens: int | None,
    full: Overflow,
    new: bool,
) -> Generator[Token, None, None]:
    """The answer of a diffusion model to all that the session holds and these ids; errors at once."""
    executor, held = session._executor, session._held
    if full.shifts:
        check_shifts(executor, "overflow")
    every = np.concatenate([np.array(held.ids, np.int32), ids])
    most = DEFAULT_LENGTH if max_tokens is None else max_tokens
    length = answer_length(len(every), most, session.n_ctx)
    if length < most:
        full.when_full(session.n_ctx)  # which may be an error
    answer = denoiser_of(executor, every, params, length, session.numbers)
    session.new_use(new)
    session.chooses = params
    why_last: StopReason = "context" if length < most else "length"
    text = GeneratedText(session._tokenizer, params)
    return denoised_answer(session, answer, why_last, text, session._turn)


def _closing(tokens: Generator[Token, None, None], drafts: SessionDrafts) -> Generator[Token, None, None]:
    with contextlib.closing(drafts):
        yield from tokens


def _generated(
    session: EvaluatedSession,
    ids: Array,
    params: SamplingParams,
    limits: GenerationLimits,
    drafts: SessionDrafts | None,
    turn: int,
) -> Generator[Token, None, None]:
    if session._turn != turn:
        raise used_meanwhile()
    text, meter = GeneratedText(session._tokenizer, params), session.meter
    if not session._cancelled:
        _read_prompt(session, ids, params, limits)
    session.prompt_ids, ready, shifts = session._held.ids, False, limits.full.shifts
    forced: list[int] = []
    while True:
        session.stop_reason = _reason_to_end(session, limits)
        if session.stop_reason == "context":
            limits.full.when_full(session.n_ctx)  # which may be an error
        if session.stop_reason is not None:
            return
        if shifts:
            _make_room(session, limits, 1)
        if not forced and not ready and session._held.latest.n_evaluated < len(session._held):
            session._compile(0)  # the program of single tokens, once the first one was given
            ready = True
        with meter.token():
            token = forced.pop(0) if forced else _decide(session, params, limits, drafts)
            ended = session.stop_reason = text.ended_by(token)
            scores = next(iter(session.scores), None)
            piece = text.flush() if ended else _append(session, token, text, limits)
            forced = forced or (_forced(session, limits) if params.structured else [])
        if ended:
            if piece:
                yield Token(token, piece, logprobs=scores)
            return
        meter.n_gen += 1
        session.logprobs += session.scores
        yield Token(token, piece, logprobs=scores)
        if session.stop_reason is not None:
            return
        if session._turn != turn:
            raise used_meanwhile()


def _read_prompt(
    session: EvaluatedSession, ids: Array, params: SamplingParams, limits: GenerationLimits
) -> None:
    """Evaluate the prompt; of an encoder and decoder, what the decoder begins with."""
    if session._executor.encodes:
        ids = _decoder_prompt(session, ids)
    if len(ids) and not session._cancelled:
        _make_room(session, limits, len(ids))
        session._compile(len(ids), params.prompt_logprobs is not None)
        with session.meter.prompt(len(ids)):
            _evaluate_prompt(session, ids, params)


def _decoder_prompt(session: EvaluatedSession, ids: Array) -> Array:
    """Have the encoder read the ids, if there are any; what the decoder evaluates then, to answer them.

    The start token, and only before anything else: later the decoder goes on where it is.
    """
    if len(ids):
        session.read_source(ids)
    first = [] if len(session._held) else [session._executor.config.start_token]
    return checked_ids(first, session.n_vocab)


def _evaluate_prompt(session: EvaluatedSession, ids: Array, params: SamplingParams) -> None:
    if params.prompt_logprobs is None:
        session.evaluated(ids, by=params)
        return
    sequence, held = session.sequence(), session._held.ids
    all_ids = np.concatenate([np.array(held, np.int32), ids])
    sequence.score_prompt(all_ids, params, session._tokenizer, len(held))
    scores = sequence.prompt_scores or []
    if held:
        path = session._executor.file.path
        scores.append(score_of(session.logits, sequence.request, len(held), path))
    session.evaluated(ids, by=params, scored=True)
    session.prompt_logprobs = scores[: len(session._held)]


def _decide(
    session: EvaluatedSession, params: SamplingParams, limits: GenerationLimits, drafts: SessionDrafts | None
) -> int:
    """The id that follows, as of `Session.sample`; the step after is submitted first, where that can be."""
    held = session._held
    if drafts is not None:
        return drafts.token(session, params, limits.more(session.meter.n_gen) - 1)
    token = None
    if session.has_top_k and held.n_waiting <= 1 and not held.latest.next_logits.known:
        token = session.sampled_ahead(params, limits.more(session.meter.n_gen) > 1)
    return session.sampled(params) if token is None else token


def _forced(session: EvaluatedSession, limits: GenerationLimits) -> list[int]:
    """The tokens that the structure of the text leaves no choice about, as many as have room.

    None where the generation has ended.
    """
    if session.stop_reason is not None:
        return []
    room = min(session.n_ctx - len(session._held), limits.more(session.meter.n_gen)) - 1
    return session._structured.forced(session.generated, room)


def _append(session: EvaluatedSession, token: int, text: GeneratedText, limits: GenerationLimits) -> str:
    """Append a token; the text that it makes certain, all of it where the generation ends here."""
    session._held.append(token)
    session.generated.append(token)
    piece, stopped = text.push(token)
    if stopped:
        session.stop_reason = "stop"
    elif _reason_to_end(session, limits, 1) is not None:
        piece += text.flush()
    return piece


def _reason_to_end(session: EvaluatedSession, limits: GenerationLimits, n_more: int = 0) -> StopReason | None:
    n_past, n_gen = session._held.latest.n_tokens, session.meter.n_gen + n_more
    return "cancel" if session._cancelled else limits.reason(n_past, n_gen)


def _make_room(session: EvaluatedSession, limits: GenerationLimits, count: int) -> None:
    """Forget tokens so that `count` more fit, where a full context does that."""
    drop = n_dropped(len(session._held), limits.kept, count, session.n_ctx) if limits.full.shifts else 0
    if drop:
        kept = min(limits.kept, len(session._held))
        session.sequence()
        session._held.shift(kept, drop)
        session.numbers.kept.forget(kept, drop)
        session.shifts.append((kept, drop))


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
        executor = session._executor
        self._drafts, self._speculation = drafts, Speculation(executor.n_batch, executor.recurrent)
        self._rows: Floats = np.empty((0, 0), np.float32)  # behind the latest id and each of the draft
        self._draft: list[int] = []
        self._at = 0  # tokens held when the latest was sampled
        if drafts.reads_hidden:
            _show_hidden(session, True)
            session._probe.watch = self._saw
            self._session = session
        draft_program(executor, session._probe.options, 1)

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
            self._drafts.counted(0, n)
            self._draft, self._rows = draft[n:], rows[n:]
        elif held.latest.next_logits.known or held.n_waiting != 1:
            return session.sampled(params)
        else:
            held.rolled_back()  # recurrent states go back to before a draft that was wrong
            again = held.n_waiting - 1
            proposed = self._proposed(session, params, most, again) if again <= MOST_AGAIN else []
            if not proposed and not 0 < again < self._speculation.most:
                token = session.sampled(params)
                self._speculation.times.measured(again + 1, time.perf_counter() - begin)
                return token
            n_rows = again + 1 + len(proposed)
            evaluation = session.evaluation()
            ids = np.concatenate([evaluation.waiting, np.array(proposed, np.int32)])
            probe = session._probe
            logits = drafted_logits(evaluation.sequence, ids, again, probe.options, probe.watch)
            held.evaluated(held.latest, NextLogits(logits[again]))
            self._drafts.counted(len(proposed), 0)
            self._draft, self._rows = proposed, logits[again:]
        chosen = session.sampled_from_known(params)
        assert chosen is not None  # its whole row is known
        if n_rows:
            self._speculation.times.measured(n_rows, time.perf_counter() - begin)
        return chosen

    def _proposed(
        self, session: EvaluatedSession, params: SamplingParams, most: int, again: int
    ) -> list[int]:
        room = min(self._speculation.room(1, again), session.n_ctx - len(session._held) - 1, most)
        matcher = session._structured.matcher(params, session.generated)
        sequence = session.sequence()
        self._drafts.reads(SequenceCells(sequence.room.runner, sequence))
        draft = self._drafts.propose(session._held.history(), room, matcher)
        (draft,) = self._speculation.worth([(self._drafts, draft)], 1, again)
        if not draft:
            return []
        with session._executor.lock:
            return draft if session.sequence().keep_before_draft() else []

    def _saw(self, outputs: Mapping[str, Array]) -> None:
        rows = outputs[HIDDEN]
        self._drafts.saw(self._session._held.n_cells - len(rows), rows)

    def close(self) -> None:
        """No token is wanted any more."""
        if self._drafts.reads_hidden and self._session._probe.watch == self._saw:
            _show_hidden(self._session, False)  # else they are another generation's
        self._drafts.drafter.close()
