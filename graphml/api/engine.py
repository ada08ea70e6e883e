"""An engine: many requests on one model at a time, in steps that they share. Made by `Model.engine`.

Knows requests, texts and results; steps and blocks are the runtime's.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from statistics import fmean, median
from typing import Any, ClassVar

from graphml.api.capture import Patches, Patterns, Probe
from graphml.api.draft_choice import DraftModel, drafts_for
from graphml.api.engine_opening import checked_itl, checked_sequences, engine_parts, opened
from graphml.api.engine_requests import Requests
from graphml.api.engine_store import AnyPath, opened_store
from graphml.api.keywords import hinted
from graphml.api.prefix_files import PrefixFiles
from graphml.api.prompt_encoder import Prompt, PromptEncoder, is_single
from graphml.api.reader_wakes import Wakes
from graphml.api.request_handle import Handle
from graphml.api.request_output import Counts, RequestOutput
from graphml.api.request_probes import Probed, RequestProbes
from graphml.api.stats import EngineStats
from graphml.api.text_rows import Cancellation, rows_of_texts
from graphml.api.token_stream import Result, TokenStream
from graphml.api.tokens import NO_IDS
from graphml.compiler.multi_device import PartsDevice
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.loading.pooling import LOGITS
from graphml.options.argument_checks import seed_or_random, whole_number
from graphml.options.option_fields import Whole
from graphml.other_attributes import NamesOthers
from graphml.runtime.blocks.overflow import Overflow
from graphml.runtime.blocks.request import Request, extra_of
from graphml.runtime.blocks.sequence import Sequence as RunningSequence
from graphml.runtime.loop.engine_snapshot import EngineSnapshot, snapshot
from graphml.runtime.loop.timeline import LIMIT, Timeline
from graphml.runtime.programs.adapter_options import Layers, Scaled
from graphml.runtime.programs.executor import Executor
from graphml.runtime.steps.cell_mover import check_shifts
from graphml.runtime.steps.guidance import GuidancePair
from graphml.runtime.steps.sequence_cells import SequenceCells
from graphml.runtime.store.stored_prefixes import StoredPrefixes
from graphml.sampling import SamplingParams, changed_params
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.sampling.chain.sampler import sampler_of
from graphml.sampling.structured.params_structure import matcher_of
from graphml.system.closing import Closing


class Engine(NamesOthers, Closing):
    """Requests share steps, blocks and prefixes; `submit` may be called from any thread.

    n_ctx: most tokens of a sequence.
    """

    _made_by: ClassVar = "graphml.load(path).engine()"
    _instead: ClassVar = {
        "step": "submit; its thread runs the steps", "abort": "Handle.cancel, of what submit returns",
    }  # fmt: skip
    _same: ClassVar = {
        "()": "submit", "add_request": "submit", "metrics": "stats", "shutdown": "close",
        "generate_async": "agenerate", "chat": "generate", "complete": "generate",
    }  # fmt: skip

    def __init__(
        self,
        executor: Executor,
        prompts: PromptEncoder,
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
        self.max_sequences = checked_sequences(executor, max_sequences)
        sizes = n_ctx, kv_memory, self.max_sequences
        parts = engine_parts(executor, *sizes, checked_itl(target_itl_ms), prefix_cache)
        self.n_ctx, self.n_vocab = parts.n_ctx, executor.n_vocab
        self._executor, self._tokenizer = executor, prompts.tokenizer
        self._loop, runner = parts.loop, parts.runner
        self._runner = weakref.ref(runner)  # the loop's own, as long as it is open
        self._full, self._draft = full or Overflow(), draft
        self._requests = Requests(executor, prompts, self.n_vocab, self.n_ctx)
        self._probes = RequestProbes(executor)
        self._check_full(self._full)
        if store is not None and executor.denoises:
            raise UsageError("store: wanted None for a diffusion model, of which no prefix is used again")
        blocks = opened_store(store, store_bytes, executor, runner.parts.rows, bool(prefix_cache))
        if blocks is not None:
            self._loop.prefixes = StoredPrefixes(self._loop.scheduler, runner.parts, blocks, self._loop.wake)
        self._orders = itertools.count()
        self._counts, self._wakes = Counts(), Wakes()
        self._loop.wake_readers = self._wakes.now
        opened(self, self._loop)

    @hinted
    def submit(
        self,
        prompt: Prompt,
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
        negative_prompt: Prompt | None = None,
        salt: bytes = b"",
        weight: float = 1.0,
        capture: Patterns = (),
        patch: Patches | None = None,
        positions: Collection[int] | None = None,
        scores_from: int = 0,
        control_vectors: Scaled | None = None,
        control_layers: Layers | None = None,
        **sampling: Any,
    ) -> Handle:
        """Continue a prompt `n` times: a text, the messages of a conversation, or ids.

        A text is encoded as `Model.encode` does; messages ([{"role": "user", "content": "Hi"}]) are rendered
        by the chat template. sampling: fields of `SamplingParams` as keywords, which change `params`.
        max_tokens: None: until the model ends, or the context is full. seed: of the first sequence's random
        generator, one more for each further one; None: random ones. key: whose request it is; prompts of
        different keys take turns, in shares of their weights. priority: larger ones go first. deadline:
        seconds from now after which it ends with what there is. overflow, keep: what a full context does, as
        of `Session.generate`; None: as the engine does. lora: LoRA adapters (GGUF), each with its scale, in
        place of the model's; None: those that it was opened with. guidance_scale, negative_prompt:
        classifier-free guidance away from another prompt, 1: none; see `Model.guided`. salt: prefixes are
        shared among requests of equal salt only. scores_from: the first id of the prompt that its
        `prompt_logprobs` are of; what others have computed of those before it is not computed again.
        capture, patch, control_vectors, control_layers: as of `Model.session`. `Result.captured` has a row of
        each token that was computed, of the prompt, too; positions: of those alone, 0 is the first. With them
        no prefix is reused, and drafts, guidance and, with capture, n above 1 are a UsageError.
        UsageError for what could never run, at once.
        """
        params = changed_params(params, sampling)
        full = Overflow(
            self._full.overflow if overflow is None else overflow, self._full.keep if keep is None else keep
        )
        self._check_full(full)
        request = self._requests.made(
            prompt, params, max_tokens=max_tokens, n=n, key=key, weight=weight, priority=priority,
            deadline=deadline, full=full, lora=lora, salt=salt,
        )  # fmt: skip
        asked = Probed(capture, patch, control_vectors, control_layers, positions)
        probe = None
        if asked.some and self._executor.denoises:
            raise UsageError(
                "capture, patch, control_vectors: wanted none in an engine of a diffusion model; its "
                "sessions have captures and patches"
            )
        if asked.some:
            request, probe = self._probes.added(request, asked, salt, guidance_scale != 1.0)
        negative = self._requests.negative(request, guidance_scale, negative_prompt, lora, salt)
        stream = TokenStream(request.n, self._wakes)
        first = Whole(0, len(request.ids) - 1).read("scores_from", scores_from)
        members = self._members(request, negative, guidance_scale, seed, stream, probe, first)
        sequences = tuple(sequence for sequence, _ in members)
        self._prepare(sequences)
        self._loop.add(members)
        return Handle(self, sequences, self._loop, stream)

    def generate(self, prompt: Prompt | Sequence[Prompt], *args: Any, **kwargs: Any) -> Any:
        """What `submit` becomes, a `Result`; of several prompts, which share steps, a list of them."""
        if is_single(prompt):
            return self.submit(prompt, *args, **kwargs).result()  # type: ignore[arg-type]
        handles = [self.submit(each, *args, **kwargs) for each in prompt]  # type: ignore[arg-type]
        return [handle.result() for handle in handles]

    async def agenerate(self, prompt: Prompt, *args: Any, **kwargs: Any) -> Result:
        """What `submit` becomes, while other tasks of the event loop run."""
        return await self.submit(prompt, *args, **kwargs)

    def stream(self, prompt: Prompt, *args: Any, **kwargs: Any) -> Iterator[str]:
        """The pieces of an answer's text as they come; the request is submitted at once."""
        handle = self.submit(prompt, *args, **kwargs)
        return (token.piece for token in handle if token.piece)

    def astream(self, prompt: Prompt, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        """The same, while other tasks of the event loop run."""
        handle = self.submit(prompt, *args, **kwargs)
        return (token.piece async for token in handle if token.piece)

    def _members(
        self,
        request: Request,
        negative: Request | None,
        scale: float,
        seed: int | None,
        stream: TokenStream,
        probe: Probe | None,
        scores_from: int,
    ) -> list[tuple[RunningSequence, RequestOutput]]:
        """The sequences of a request, and who gets their tokens. negative: of guidance by this scale."""
        params, first = request.params, seed_or_random(seed)
        matcher = matcher_of(params, self._tokenizer)
        prepared = sampler_of(params).prepared(self._tokenizer)
        scores: list[TokenLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            scores = [None] * max(1, scores_from)
        members = []
        for index in range(request.n):
            sequence = RunningSequence(request, next(self._orders), index, first + index)
            sequence.matcher = None if matcher is None else matcher.copy()
            sequence.numbers.prepared = prepared
            sequence.prompt_scores = scores
            sequence.denoiser = self._requests.denoiser(sequence.request, sequence.numbers)
            sequence.captured = probe.rows if probe is not None and probe.captures else None
            if request.options is None and negative is None and sequence.denoiser is None:
                most = self.n_ctx if request.max_tokens is None else len(request.ids) + request.max_tokens
                n_ctx = min(most, self.n_ctx)
                sequence.drafts = drafts_for(params, self._executor, self._draft, n_ctx)
            elif negative is not None:
                GuidancePair(sequence, RunningSequence(negative, next(self._orders), index), scale)
            members.append((sequence, RequestOutput(sequence, stream, self._tokenizer, self._counts)))
        return members

    def _prepare(self, sequences: tuple[RunningSequence, ...]) -> None:
        """Have the programs that a request's sequences need besides those of every engine."""
        runner, (first, *_) = self._runner(), sequences
        if runner is None:
            return  # it was closed, which `StepLoop.add` raises
        if first.denoiser is not None:
            runner.prepare_texts(LOGITS, [first.n_text])
        if first.drafts is not None:
            runner.prepare_drafts(first.drafts.reads_hidden)
        for sequence in sequences:
            if sequence.drafts is not None:
                sequence.drafts.reads(SequenceCells(runner, sequence))
        if first.request.options is not None:
            self._probes.prepare(sequences, runner)
        elif first.request.adapters is not None:
            runner.prepare_adapters(list(sequences))
        negatives = [sequence.guidance.negative for sequence in sequences if sequence.guidance is not None]
        if negatives and negatives[0].request.adapters is not None:
            runner.prepare_adapters(negatives)
        if first.prompt_scores is not None:
            runner.prepare_scores()

    @property
    def embeds(self) -> bool:
        """Whether `embed_ids` has its blocks: not where parts of the model are on several devices.

        Nor of a diffusion model, where a text would wait for all steps of the answers that came before.
        """
        return not (isinstance(self._executor.device, PartsDevice) or self._executor.denoises)

    def embed_ids(
        self,
        texts: Sequence[Sequence[int]],
        pooling: str,
        *,
        key: str | None = None,
        priority: int = 0,
        cancellation: Cancellation | None = None,
    ) -> list[Floats]:
        """The rows of each text's ids, float32 [rows, d], as `Model.embed_ids` has them; waits for them.

        In steps of this engine, each text whole. Those for a few steps wait at a time, so that what comes
        later need not wait for all. key, priority: as of `submit`; cancellation: ends them, with a
        BackendError.
        UsageError as of `Model.embed`, for a text that the blocks do not hold, and unless it `embeds`.
        """
        if not self.embeds:
            raise UsageError(
                "embed_ids: wanted a model on one device, no diffusion model; see Model.embed_ids"
            )
        requests, runner = self._requests.texts(texts, pooling, key, priority), self._runner()
        if runner is not None and requests:
            runner.prepare_texts(pooling, map(len, texts))
        return rows_of_texts(self._loop, lambda: next(self._orders), requests, cancellation=cancellation)

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
                sequences_per_step=self._loop.n_served / max(self._loop.n_steps, 1),
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
            self._loop.timeline = timeline = Timeline(self._loop.scheduler, self._loop.lock, limit)
        try:
            yield timeline
        finally:
            with self._loop.lock:
                self._loop.timeline = None

    def prefix_files(self) -> PrefixFiles:
        """Its prefixes, to be saved to files and restored; UsageError for a model that keeps none."""
        if self._executor.denoises:
            raise UsageError("prefixes: an engine of a diffusion model keeps none: all of a text changes")
        return PrefixFiles(self._executor, self._loop, self._runner())

    def capture_bytes(self, capture: Patterns) -> dict[str, int]:
        """Name -> bytes of a row of each value that `submit` would capture; UsageError as of it."""
        return Probe(self._executor, capture).row_bytes

    def prefix_extra(self, lora: Scaled | None = None, salt: bytes = b"") -> bytes:
        """What a prompt's prefix is found by besides its ids; arguments as of `submit`."""
        return extra_of(NO_IDS, self._requests.adapters(lora, NO_IDS), salt)

    def prepare_copies(self) -> None:
        """Compile now what copies a partly filled block, so that the first step that shares one need not."""
        runner = self._runner()
        if runner is not None and not self._executor.denoises:
            runner.prepare_moves(shifts=False)

    def close(self) -> None:
        """End all requests as if they were cancelled; a second call does nothing."""
        self._loop.close()
        self._probes.close()

    def __repr__(self) -> str:
        scheduler = self._loop.scheduler  # its lists are read without the lock, which a step may hold
        counts = f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting"
        path, sequences = str(self._executor.file.path), self.max_sequences
        return f"Engine({path!r}, {counts}; {sequences} sequences of {self.n_ctx} tokens at a time)"

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *error: object) -> None:
        import asyncio  # as in `TokenStream`: only event loops need it

        await asyncio.to_thread(self.close)  # waits for the current step

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
                runner.prepare_moves(shifts=True)
