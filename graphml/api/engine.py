"""An engine: many requests on one model at a time, in steps that they share. Made by `Model.engine`.

Knows requests, texts and results; steps and blocks are the runtime's.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, median

from graphml.api.draft_choice import drafts_for
from graphml.api.draft_model import DraftModel
from graphml.api.engine_memory import n_blocks_for, n_checkpoints_for, window_rooms
from graphml.api.engine_stats import EngineStats
from graphml.api.engine_store import AnyPath, opened_store
from graphml.api.prefix_files import PrefixFiles, prefix_files
from graphml.api.request_handle import Handle
from graphml.api.request_output import Counts, RequestOutput
from graphml.api.token_stream import TokenStream
from graphml.api.tokens import NO_IDS, Ids, check_stop, checked_ids
from graphml.argument_checks import count_or_none, seed_or_random, whole_number
from graphml.errors import TokenizerError, UsageError
from graphml.ir.op import Array
from graphml.option_fields import Real
from graphml.runtime.adapters import Scaled, applied_adapters
from graphml.runtime.block_pool import BlockPool
from graphml.runtime.cell_mover import check_shifts
from graphml.runtime.checkpoints import Checkpoints
from graphml.runtime.drafting import DRAFT_ROWS
from graphml.runtime.engine_snapshot import EngineSnapshot, snapshot
from graphml.runtime.executor import Executor
from graphml.runtime.guidance import Guidance
from graphml.runtime.overflow import Overflow
from graphml.runtime.paged_cache import BLOCK_SIZE
from graphml.runtime.request import Request, extra_of
from graphml.runtime.runner import Runner
from graphml.runtime.scheduler import Scheduler
from graphml.runtime.sequence import Sequence as RunningSequence
from graphml.runtime.source_text import check_source
from graphml.runtime.step_budget import StepBudget
from graphml.runtime.step_loop import StepLoop
from graphml.runtime.stored_prefixes import StoredPrefixes
from graphml.runtime.timeline import LIMIT, Timeline
from graphml.runtime.window_blocks import WindowBlocks
from graphml.sampling import SamplingParams, checked_params
from graphml.sampling.logprobs import TokenLogprobs
from graphml.sampling.structured.params_structure import matcher_of
from graphml.text.tokenizer import Tokenizer

MAX_SEQUENCES = 8
MAX_CONTINUATIONS = 128  # of one request
_OPEN: weakref.WeakSet[StepLoop] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No step may run while Python ends."""
    for loop in list(_OPEN):
        loop.close()


def check_deterministic(executor: Executor, wanted: bool | None) -> None:
    """UsageError where an engine is wanted otherwise than the model, whose programs it runs, was opened."""
    if wanted is not None and not isinstance(wanted, bool):
        raise UsageError(f"deterministic: wanted True, False, or None; got {wanted!r}")
    if wanted is not None and wanted != executor.deterministic:
        raise UsageError(
            f"deterministic: wanted {executor.deterministic}, as {executor.file.path} was opened, or None; "
            f"got {wanted}: for that load(..., deterministic={wanted}), on the backend 'cpu'"
        )


class Engine:
    """Requests share steps, blocks and prefixes; `submit` may be called from any thread.

    n_ctx: most tokens of a sequence.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        n_vocab: int,
        n_ctx: int,
        kv_memory: float | None = None,
        max_sequences: int | None = None,
        target_itl_ms: float = 50.0,
        prefix_cache: bool = True,
        store: AnyPath | None = None,
        store_bytes: int | None = None,
        full: Overflow | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        count = MAX_SEQUENCES if max_sequences is None else whole_number(max_sequences)
        if count is None or not 1 <= count <= executor.n_batch:
            raise UsageError(
                f"max_sequences: wanted 1 to n_batch = {executor.n_batch}; got {max_sequences!r}"
            )
        if (
            isinstance(target_itl_ms, bool)
            or not isinstance(target_itl_ms, int | float)
            or not target_itl_ms > 0
        ):
            raise UsageError(f"target_itl_ms: wanted milliseconds above 0; got {target_itl_ms!r}")
        rooms = window_rooms(executor, kv_memory, count, n_ctx)
        # A checkpoint is no use where its windows are gone.
        n_checkpoints = n_checkpoints_for(executor, kv_memory, count) if prefix_cache and not rooms else 0
        n_blocks = n_blocks_for(executor, kv_memory, count, n_ctx, n_checkpoints, rooms)
        windows = [WindowBlocks(room, n_blocks) for room in rooms]
        self.n_ctx = min(n_ctx, n_blocks * BLOCK_SIZE)
        self.n_vocab, self.max_sequences = n_vocab, count
        self._executor, self._tokenizer = executor, tokenizer
        runner = Runner(executor, n_vocab, n_blocks, count, n_checkpoints, windows)
        keep = bool(prefix_cache) and (bool(n_checkpoints) or not executor.recurrent)
        pool = BlockPool(n_blocks, BLOCK_SIZE, keep, windows=windows)
        checkpoints = Checkpoints(n_checkpoints, BLOCK_SIZE, runner.has_cells) if n_checkpoints else None
        scheduler = Scheduler(pool, count, self.n_ctx, recurrent=executor.recurrent, checkpoints=checkpoints)
        self._loop = StepLoop(runner, scheduler, StepBudget(target_itl_ms / 1000, executor.n_batch))
        self._loop.speculation.most = min(DRAFT_ROWS, executor.n_batch)
        self._runner = weakref.ref(runner)  # the loop's own, as long as it is open
        self._full, self._draft = full or Overflow(), draft
        self._check_full(self._full)
        blocks = opened_store(store, store_bytes, executor, runner.block_rows, bool(prefix_cache))
        if blocks is not None:
            self._loop.prefixes = StoredPrefixes(scheduler, runner, blocks, self._loop.wake)
        self._orders = itertools.count()
        self._counts = Counts()
        _OPEN.add(self._loop)
        weakref.finalize(self, StepLoop.ask_to_close, self._loop)  # in any thread, so it must not wait

    def submit(
        self,
        prompt: str | Ids,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        n: int = 1,
        key: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        *,
        overflow: str | None = None,
        keep: int | None = None,
        lora: Scaled | None = None,
        guidance_scale: float = 1.0,
        negative_prompt: str | Ids | None = None,
        salt: bytes = b"",
        weight: float = 1.0,
    ) -> Handle:
        """Continue a prompt `n` times: ids, or a text that is encoded as `Model.encode` does.

        max_tokens: None: until the model ends, or the context is full. seed: of the first sequence's random
        generator, one more for each further one; None: random ones. key: whose request it is; prompts of
        different keys take turns, in shares of their weights. priority: larger ones go first. deadline:
        seconds from now after which it ends with what there is. overflow, keep: what a full context does, as
        of `Session.generate`; None: as the engine does. lora: LoRA adapters (GGUF), each with its scale, in
        place of the model's; None: those that it was opened with. guidance_scale, negative_prompt:
        classifier-free guidance away from another prompt, 1: none; see `Model.guided`. salt: prefixes are
        shared among requests of equal salt only.
        UsageError for what could never run, at once.
        """
        params = checked_params(params)
        check_stop(self._tokenizer, params)
        ids, source = self._prompt(checked_ids(self._encoded(prompt), self.n_vocab, some=True))
        count, level = whole_number(n), whole_number(priority)
        if count is None or not 1 <= count <= MAX_CONTINUATIONS:
            raise UsageError(f"n: wanted 1 to {MAX_CONTINUATIONS}; got {n!r}")
        if key is not None and not isinstance(key, str):
            raise UsageError(f"key: wanted a text, or None; got {key!r}")
        if level is None:
            raise UsageError(f"priority: wanted a whole number; got {priority!r}")
        if deadline is not None and not (isinstance(deadline, int | float) and deadline > 0):
            raise UsageError(f"deadline: wanted seconds above 0, or None; got {deadline!r}")
        full = Overflow(
            self._full.overflow if overflow is None else overflow, self._full.keep if keep is None else keep
        )
        self._check_full(full)
        adapters = applied_adapters(self._executor.file, lora, ids, self._executor.encodes)
        request = Request(
            ids,
            params,
            max_tokens=count_or_none("max_tokens", max_tokens),
            key=key,
            weight=Real(1e-3, 1e9).read("weight", weight),
            priority=level,
            deadline=None if deadline is None else time.monotonic() + deadline,
            extra=extra_of(source, adapters, salt),
            adapters=adapters,
            source=source,
            n=count,
            full=full,
            begins=self._tokenizer is not None and int(ids[0]) == self._tokenizer.bos,
            vocabulary=self._tokenizer,
        )
        negative = self._negative(request, guidance_scale, negative_prompt, lora, salt)
        matcher = matcher_of(params, self._tokenizer)
        stream, first = TokenStream(count), seed_or_random(seed)
        scores: list[TokenLogprobs | None] | None = None if params.prompt_logprobs is None else [None]
        members = []
        for index in range(count):
            sequence = RunningSequence(request, next(self._orders), index, first + index)
            sequence.matcher = None if matcher is None else matcher.copy()
            sequence.prompt_scores = scores
            if negative is None:
                sequence.drafts = drafts_for(params, self._executor, self._draft)
            else:
                Guidance(sequence, RunningSequence(negative, next(self._orders), index), guidance_scale)
            members.append((sequence, RequestOutput(sequence, stream, self._tokenizer, self._counts)))
        runner = self._runner()
        if runner is not None and members[0][0].drafts is not None:
            runner.prepare_drafts()
        if runner is not None and adapters is not None:
            runner.prepare_adapters([one for one, _ in members])
        if runner is not None and negative is not None and negative.adapters is not None:
            runner.prepare_adapters([one.guidance.negative for one, _ in members if one.guidance])
        if runner is not None and scores is not None:
            runner.prepare_scores()
        self._loop.add(members)
        sequences = tuple(one for one, _ in members)
        return Handle(self, sequences, lambda: self._loop.cancel(sequences), stream)

    def stats(self) -> EngineStats:
        """What runs and waits now, and counts so far."""
        with self._loop.lock:
            scheduler, pool = self._loop.scheduler, self._loop.scheduler.pool
            drafts = self._loop.speculation
            rows, seconds = zip(*self._loop.recent, strict=True) if self._loop.recent else ((0,), (0.0,))
            return EngineStats(
                running=len(scheduler.running), waiting=len(scheduler.waiting), blocks_used=pool.n_used,
                blocks_shared=pool.n_shared, blocks_free=pool.n_free, blocks_kept=pool.n_kept,
                blocks_evicted=pool.n_evicted, hit_tokens=self._counts.hit_tokens,
                n_preempted=self._counts.n_preempted, n_steps=self._loop.n_steps, step_s=seconds[-1],
                step_p50_s=median(seconds), rows_per_step=fmean(rows),
                n_drafts=drafts.n_drafts, n_drafted=drafts.n_drafted, n_accepted=drafts.n_accepted,
            )  # fmt: skip

    @property
    def failure(self) -> BaseException | None:
        """What ended its thread; None while it lives."""
        return self._loop.failure

    def snapshot(self) -> EngineSnapshot:
        """Who runs and waits now, and who holds which blocks."""
        with self._loop.lock:
            return snapshot(self._loop.scheduler)

    @contextlib.contextmanager
    def timeline(self, limit: int = LIMIT) -> Iterator[Timeline]:
        """Record each step while within: its `steps` are values, the latest `limit` of them.

        UsageError where steps are being recorded already.
        """
        if (whole_number(limit) or 0) < 1:
            raise UsageError(f"limit: wanted a number of steps, 1 or more; got {limit!r}")
        with self._loop.lock:
            if self._loop.timeline is not None:
                raise UsageError("timeline: the engine's steps are being recorded already")
            self._loop.timeline = found = Timeline(self._loop.scheduler, self._loop.lock, limit)
        try:
            yield found
        finally:
            with self._loop.lock:
                self._loop.timeline = None

    def prefix_files(self) -> PrefixFiles:
        """Its prefixes, to be saved to files and restored; UsageError for a model of other states."""
        return prefix_files(self._executor, self._loop, self._runner())

    def prefix_extra(self, lora: Scaled | None = None, salt: bytes = b"") -> bytes:
        """What a prompt's prefix is found by besides its ids; arguments as of `submit`."""
        return extra_of(NO_IDS, applied_adapters(self._executor.file, lora, NO_IDS), salt)

    def close(self) -> None:
        """End all requests as if they were cancelled; a second call does nothing."""
        self._loop.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _prompt(self, ids: Array) -> tuple[Array, Array]:
        """The ids that are continued, and those that an encoder reads first."""
        if not self._executor.encodes:
            return ids, NO_IDS
        check_source(self._executor, len(ids), self.n_ctx)
        return checked_ids([self._executor.config.start_token], self.n_vocab), ids

    def _negative(
        self, request: Request, scale: float, prompt: str | Ids | None, lora: Scaled | None, salt: bytes
    ) -> Request | None:
        """The request of the negative prompt of guidance; None without that."""
        if Real(0, 100).read("guidance_scale", scale) == 1.0:
            if prompt is not None:
                raise UsageError("guidance_scale: wanted another than 1 for a negative prompt; got 1")
            return None
        if self._executor.encodes or request.full.shifts:
            why = "a model without an encoder" if self._executor.encodes else "overflow stop or error"
            raise UsageError(f"guidance_scale: wanted {why} for guidance")
        given = request.ids[-1:] if prompt is None else self._encoded(prompt)
        ids = checked_ids(given, self.n_vocab, some=True)
        adapters = applied_adapters(self._executor.file, lora, ids)
        extra, params = extra_of(NO_IDS, adapters, salt), SamplingParams()
        return replace(request, ids=ids, adapters=adapters, extra=extra, params=params, begins=False)

    def _check_full(self, full: Overflow) -> None:
        """UsageError where a full context cannot be shifted; what a shift needs is compiled before a step."""
        if full.shifts:
            check_shifts(self._executor, "overflow")
            if self._executor.cell_groups:
                raise UsageError(
                    f"overflow: in {self._executor.architecture.name} some layers see a window, of which an "
                    "engine keeps no more; wanted a model opened with swa_full=True, or stop or error"
                )
            runner = self._runner()
            if runner is not None:
                runner.prepare_shift()

    def _encoded(self, prompt: str | Ids) -> Ids:
        if not isinstance(prompt, str):
            return prompt
        if self._tokenizer is None:
            raise TokenizerError("submit: the model has no tokenizer; wanted ids, got a text")
        return self._tokenizer.encode(prompt, parse_special=False)
