"""The tokens of a session: they are evaluated, and what follows them is sampled.

The part of `Session` that its generations, drafts and prompts use. Knows ids, logits and programs; nothing of
what a generation is or when it ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from graphml.api.capture import Probe
from graphml.api.draft_choice import DraftModel
from graphml.api.prompt_encoder import PromptEncoder
from graphml.api.stats import Meter, Stats
from graphml.api.tokens import NO_IDS, StopReason
from graphml.backend import Progress, no_progress
from graphml.compiler.top_k_outputs import TOP_K
from graphml.errors import UsageError
from graphml.ir.op import Array, Floats
from graphml.options.argument_checks import seed_or_random
from graphml.runtime.plans.plan_sources import check_source, encoder_program
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.committed import Captured, Committed, Evaluation
from graphml.runtime.sessions.evaluation import evaluate
from graphml.runtime.sessions.pinned import Pinned
from graphml.runtime.sessions.shared_room import session_sequence
from graphml.runtime.steps.computed_plan import BegunPlan
from graphml.runtime.steps.run_ahead import RunAhead, following
from graphml.sampling import NextLogits, PeekableRandom, SamplingParams, TopK
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.sampling.chain.next_logits import NOTHING_KNOWN, next_token
from graphml.sampling.chain.top_k_sampling import samples_without_row
from graphml.sampling.denoiser import Denoiser
from graphml.sampling.structured.params_structure import Structured

_NO_LOGITS: Floats = np.empty(0, np.float32)


def used_meanwhile() -> UsageError:
    """What a generation ends with where its session had another use since."""
    return UsageError("generate: the session was used for something else meanwhile; begin anew")


class EvaluatedSession:
    """See `Session`, whose documented attributes are these. `chooses`: params of the latest generation.

    `on_denoised`: called after each step in which a diffusion model's answer was denoised, with that answer.
    """

    def __init__(
        self,
        executor: Executor,
        prompts: PromptEncoder,
        n_ctx: int,
        seed: int | None = None,
        progress: Progress = no_progress,
        probe: Probe | None = None,
        held: Committed | None = None,
        prefix_cache: bool = True,
        draft: DraftModel | None = None,
    ) -> None:
        self.n_ctx, self.n_vocab = n_ctx, executor.n_vocab
        self.stop_reason: StopReason | None = None
        self._executor, self._prompts, self._progress = executor, prompts, progress
        self._tokenizer = prompts.tokenizer
        self.has_top_k = executor.has_top_k
        self._probe = probe or Probe(executor)
        self._ahead: RunAhead | None = None  # of the latest generation
        self._next: BegunPlan | None = None  # submitted before the row before it was read
        self._cancelled = False  # an Event has a lock, which Ctrl-C may leave locked
        self._turn, self._finds, self._draft = 0, prefix_cache, draft
        self._unread: int | None = None  # the turn of a generation of which no token was asked for yet
        self.chooses, self._structured = SamplingParams(), Structured()  # of the latest generation
        self.prompt_ids: list[int] = []
        self.generated: list[int] = []
        self.shifts: list[tuple[int, int]] = []
        self.scores: list[TokenLogprobs] = []  # of the token that was sampled last
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = []
        self.meter = Meter()
        self.on_denoised: Callable[[Denoiser], None] | None = None
        self.set_seed(seed)
        self._held = (
            Committed(session_sequence(executor, self._probe.options, n_ctx)) if held is None else held
        )
        self._held.hide(not prefix_cache)

    @property
    def n_past(self) -> int:
        """How many tokens the session holds: all that were evaluated or given out."""
        return len(self._held)

    @property
    def tokens(self) -> list[int]:
        """The ids that the session holds, in order."""
        return self._held.ids

    @property
    def source(self) -> list[int]:
        """The ids of the source text that an encoder has read."""
        return list(self._held.latest.source)

    @property
    def captured(self) -> Captured:
        """Name -> array of the latest evaluation, one row a token where the value has one."""
        return self._held.latest.captured

    @property
    def history(self) -> list[Captured]:
        """What was captured by each evaluation, first to latest; empty unless it was asked for."""
        return list(self._held.latest.history)

    @property
    def stats(self) -> Stats:
        """Counts and speed of the latest `generate`, or of the latest `eval`."""
        return self.meter.stats()

    def set_seed(self, seed: int | None) -> None:
        """Start the random generator anew; None picks a random seed, which `seed` then holds."""
        self.seed = seed_or_random(seed)
        self.numbers = PeekableRandom(self.seed, self._tokenizer)

    def new_use(self, new: bool = True) -> None:
        """Begin another use: what ran before is over, figures start anew; not `new`: a cancel counts."""
        self._executor.programs.check_file()
        self._ahead, self._structured = RunAhead(self.sequence().room), Structured()
        self._turn += 1
        if new:
            self._cancelled = False
        self.meter = Meter()
        self.prompt_ids, self.generated, self.shifts, self.stop_reason = [], [], [], None
        self.scores, self.logprobs, self.prompt_logprobs = [], [], []

    def _compile(self, count: int, all_logits: bool = False) -> None:
        """Have the program for so many ids ready, so that the meter counts only its running."""
        sequence = self.sequence()
        waiting = min(count + self.n_past - sequence.n_computed, self._executor.max_chunk)
        sequence.room.compile(waiting, 1, all_logits, self._probe.options)

    def evaluation(self, ids: Array = NO_IDS) -> Evaluation:
        """Begin to evaluate the tokens that are not evaluated yet, and `ids`; `commit` ends it."""
        self._next = None
        return self._held.begin(self.n_ctx, ids)

    def commit(self, done: Evaluation, next_logits: NextLogits) -> None:
        """All tokens and the evaluation's ids are evaluated now, and this is known of what follows."""
        probe = self._probe
        captured = (probe.rows.arrays() or None) if probe.captures else None
        self._held.commit(done, next_logits, captured, probe.keeps_history)

    def read_source(self, ids: Array) -> None:
        """Have the encoder read the ids in place of all that the session holds; compiling is not timed."""
        check_source(self._executor, len(ids), self.n_ctx)
        before, sequence = self._held.begin_source()
        encoder_program(self._executor, sequence.room.n_sequences)
        with self.meter.prompt(len(ids)):
            sequence.read_source(ids)
        self._held.commit_source(before, ids)

    def sequence(self) -> Pinned:
        """Where the keys and values are, after the step ahead is dropped; UsageError once it is closed."""
        self._next = None
        return self._held.rolled_back()

    def reads_top_k(self, params: SamplingParams) -> bool:
        """Whether the top k of a row is read to sample by these params, and not the whole row."""
        return self.has_top_k and samples_without_row(params, TOP_K, always=self._executor.recurrent)

    def evaluated(
        self, ids: Array, all_logits: bool = False, by: SamplingParams | None = None, scored: bool = False
    ) -> Floats:
        """Evaluate the tokens not evaluated yet and `ids`; see `Session.eval` for what comes back.

        by: what the next token is sampled by; an empty array where its top k was read, or after a cancel.
        scored: the sequence's `prompt_scores` are of these ids; WeightsError where logits are no numbers.
        """
        evaluation, probe = self.evaluation(ids), self._probe
        if probe.captures:
            probe.rows.begin()
        cancelled = (lambda: self._cancelled) if by is not None and len(ids) else None
        sequence = evaluation.sequence
        sequence.captured = probe.rows
        shared: contextlib.AbstractContextManager[int] = contextlib.nullcontext(0)
        of_rows = all_logits or scored
        if sequence.shares and self._finds and not of_rows and len(evaluation.waiting) > 1:
            shared = sequence.room.prompt(sequence, evaluation.all_ids, cancelled)
        with shared as n_cached:
            self.meter.n_cached += n_cached
            work = [(sequence, evaluation.waiting[n_cached:])]
            reads_top_k = by is not None and self.has_top_k and not scored and self.reads_top_k(by)
            of_all = [(by, self.numbers)] if by is not None and reads_top_k else ()
            how = probe.options, all_logits, scored, of_all
            results = evaluate(work, *how, probe.watch, cancelled, self._progress)
            if not results:
                return _NO_LOGITS
            (last,) = results
            if isinstance(last, TopK):
                self.commit(evaluation, NextLogits(last))
                return _NO_LOGITS
            row = last[-1] if by is not None else last[-1].copy()  # the caller gets its own
            self.commit(evaluation, NextLogits(row))
            return last[-len(ids) :] if all_logits else last[0]

    @property
    def logits(self) -> Floats:
        """The logits after the last token, float32 [n_vocab], the caller's own; computed where need be.

        UsageError for a session that holds no tokens.
        """
        self.sequence()
        held = self._held
        if not len(held):
            raise UsageError("logits: wanted a session that holds tokens; evaluate some first")
        row = held.latest.next_logits.whole_row()
        if row is None:
            held.last_waits()
            row = self.evaluated(NO_IDS)
        return row.copy()

    def sampled(self, params: SamplingParams) -> int:
        """See `Session.sample`."""
        held = self._held
        if held.latest.next_logits is not NOTHING_KNOWN:
            self.sequence()
        latest = held.latest
        if not latest.n_tokens:
            self.sequence()
            raise UsageError("sample: wanted a session that holds tokens; evaluate some first")
        if not latest.next_logits.known:
            if latest.n_evaluated == latest.n_tokens:
                held.last_waits()  # its logits are gone: once more
            self.evaluated(NO_IDS, by=params)
        token = self.sampled_from_known(params)
        if token is None:
            held.last_waits()
            self.evaluated(NO_IDS)
            token = self.sampled_from_known(params)
        assert token is not None
        return token

    def sampled_ahead(self, params: SamplingParams, more: bool) -> int | None:
        """The same by a step that was submitted ahead, or is now; None where that cannot be.

        At most one token is not evaluated. more: whether another one follows, whose step is submitted first.
        """
        held, ahead = self._held, self._ahead
        assert ahead is not None
        step, self._next = self._next, None
        if step is None or not ahead.counts(step.plan, 0, held.history()):
            sequence = held.last_waits()
            sequence.samples_by(params, self.numbers)
            last = np.array(held.history()[-1:], np.int32)
            step = ahead.submit(StepPlan((sequence.rows(last, 1),), options=self._probe.options))
        if step is None:
            return None
        before, after = held.latest, following(step.plan, self.n_ctx) if more else None
        self._next = None if after is None else ahead.submit(after, step)
        (token,) = ahead.read(step, step.plan.sampled).tokens
        if isinstance(token, Exception):
            raise token
        if isinstance(token, int):
            held.evaluated(before)
            return token
        return None  # its whole row is needed

    def sampled_from_known(self, params: SamplingParams) -> int | None:
        """A token by what is known of it; None where its whole row is needed, and not known."""
        held = self._held
        known, history = held.latest.next_logits, held.history()
        matcher = self._structured.matcher(params, self.generated) if params.structured else None
        self.scores = []
        path = self._executor.file.path
        return next_token(known, params, history, self.numbers, path, matcher, self.scores)
