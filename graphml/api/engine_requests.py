"""Requests of an engine from the arguments of `Engine.submit`; what could never run is refused at once.

Knows arguments, ids and adapters; nothing of sequences or steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.api.denoising import DEFAULT_LENGTH, answer_length, check_kind, denoiser_of
from graphml.api.draft_choice import check_no_drafts
from graphml.api.prompt_encoder import Prompt, PromptEncoder
from graphml.api.text_rows import check_texts
from graphml.api.tokens import NO_IDS, check_stop, checked_ids
from graphml.errors import UsageError
from graphml.ir.long_texts import is_long
from graphml.ir.op import Array
from graphml.loading.pooling import LOGITS
from graphml.options.argument_checks import count_or_none, whole_number
from graphml.options.option_fields import Real
from graphml.runtime.blocks.overflow import Overflow
from graphml.runtime.blocks.request import AppliedAdapter, Request, extra_of
from graphml.runtime.plans.plan_sources import check_source
from graphml.runtime.programs.adapter_options import Scaled, applied_adapters, applied_by_model
from graphml.runtime.programs.executor import Executor
from graphml.sampling import PeekableRandom, SamplingParams
from graphml.sampling.denoiser import Denoiser

MAX_CONTINUATIONS = 128  # of one request


@dataclass(frozen=True)
class Requests:
    """Makes the requests of one engine. n_ctx: most tokens of a sequence. Errors as of `Engine.submit`."""

    executor: Executor
    prompts: PromptEncoder
    n_vocab: int
    n_ctx: int

    def made(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        max_tokens: int | None,
        n: int,
        key: str | None,
        weight: float,
        priority: int,
        deadline: float | None,
        full: Overflow,
        lora: Scaled | None,
        salt: bytes,
    ) -> Request:
        """The request of a prompt; full: what a full context does, which was checked."""
        tokenizer = self.prompts.tokenizer
        check_stop(tokenizer, params)
        check_kind(self.executor, params, self.executor.options)
        prompt_ids, params = self.prompts.read(prompt, params)
        ids, source = self._split(checked_ids(prompt_ids, self.n_vocab, some=True))
        count = whole_number(n)
        if count is None or not 1 <= count <= MAX_CONTINUATIONS:
            raise UsageError(f"n: wanted 1 to {MAX_CONTINUATIONS}; got {n!r}")
        level = _order(key, priority)
        if deadline is not None and not (isinstance(deadline, int | float) and deadline > 0):
            raise UsageError(f"deadline: wanted seconds above 0, or None; got {deadline!r}")
        adapters = self.adapters(lora, ids)
        most = count_or_none("max_tokens", max_tokens)
        if self.executor.denoises and most is None:
            most = DEFAULT_LENGTH
        return Request(
            ids,
            params,
            max_tokens=most,
            key=key,
            weight=Real(1e-3, 1e9).read("weight", weight),
            priority=level,
            deadline=None if deadline is None else time.monotonic() + deadline,
            extra=extra_of(source, adapters, salt, self._is_long(ids)),
            adapters=adapters,
            source=source,
            n=count,
            full=full,
            begins=tokenizer is not None and int(ids[0]) == tokenizer.bos,
            vocabulary=tokenizer,
            pooling=LOGITS if self.executor.denoises else "",
        )

    def denoiser(self, request: Request, numbers: PeekableRandom) -> Denoiser | None:
        """What answers a request of a diffusion model; None for other models."""
        if not self.executor.denoises:
            return None
        assert request.max_tokens is not None  # as `made` made it
        length = answer_length(request.n_prompt, request.max_tokens, self.n_ctx)
        return denoiser_of(self.executor, request.ids, request.params, length, numbers)

    def negative(
        self, request: Request, scale: float, prompt: Prompt | None, lora: Scaled | None, salt: bytes
    ) -> Request | None:
        """The request of the negative prompt of guidance; None without that."""
        if Real(0, 100).read("guidance_scale", scale) == 1.0:
            if prompt is not None:
                raise UsageError("guidance_scale: wanted another than 1 for a negative prompt; got 1")
            return None
        if self.executor.denoises:
            raise UsageError("guidance_scale: wanted 1 and diffusion_cfg_scale for a diffusion model")
        check_no_drafts(request.params, "guidance")
        if self.executor.encodes or request.full.shifts:
            why = "a model without an encoder" if self.executor.encodes else "overflow stop or error"
            raise UsageError(f"guidance_scale: wanted {why} for guidance")
        prompt_ids = request.ids[-1:] if prompt is None else self.prompts.ids(prompt)
        ids = checked_ids(prompt_ids, self.n_vocab, some=True)
        adapters = self.adapters(lora, ids)
        extra, params = extra_of(NO_IDS, adapters, salt, self._is_long(ids)), SamplingParams()
        return replace(request, ids=ids, adapters=adapters, extra=extra, params=params, begins=False)

    def _is_long(self, ids: Array) -> bool:
        return is_long(self.executor.long_inputs, len(ids))

    def adapters(self, lora: Scaled | None, ids: Array) -> tuple[AppliedAdapter, ...] | None:
        """What the rows of a prompt get; None: the model's own adapters, from its begin on."""
        if self.executor.denoises:
            if lora is not None:
                raise UsageError("lora: wanted None: a diffusion model has those of load in all requests")
            return None
        if lora is None and not self.executor.encodes:
            return applied_by_model(self.executor.options, ids)
        return applied_adapters(self.executor.file, lora, ids, self.executor.encodes)

    def texts(
        self, texts: Sequence[Sequence[int]], pooling: str, key: str | None, priority: int
    ) -> list[Request]:
        """The requests of texts of which rows are wanted, pooled so."""
        check_texts(self.executor, texts)
        level = _order(key, priority)
        return [Request(np.asarray(ids, np.int32), key=key, priority=level, pooling=pooling) for ids in texts]

    def _split(self, ids: Array) -> tuple[Array, Array]:
        """The ids that are continued, and those that an encoder reads first."""
        if not self.executor.encodes:
            return ids, NO_IDS
        check_source(self.executor, len(ids), self.n_ctx)
        return checked_ids([self.executor.config.start_token], self.n_vocab), ids


def _order(key: str | None, priority: int) -> int:
    """The priority, checked with the key."""
    level = whole_number(priority)
    if key is not None and not isinstance(key, str):
        raise UsageError(f"key: wanted a text, or None; got {key!r}")
    if level is None:
        raise UsageError(f"priority: wanted a whole number; got {priority!r}")
    return level
