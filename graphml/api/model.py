"""A model: all that runs on an open one.

Knows how the parts fit together; does none of their work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

from graphml.api.answer_text import AnswerText
from graphml.api.batch import Batch
from graphml.api.beam_search import Beam, beam_search
from graphml.api.capture import Patches, Patterns, Probe
from graphml.api.chat import Chat
from graphml.api.chat_prompt import ChatSettings
from graphml.api.draft_choice import DraftModel
from graphml.api.embedding_model import EmbeddingModel
from graphml.api.engine import Engine
from graphml.api.engine_opening import check_deterministic
from graphml.api.filling import MAX_TOKENS, Files, fill_ids, filled
from graphml.api.healing import HealedPrompt, healed
from graphml.api.keywords import hinted
from graphml.api.message_list import first_messages
from graphml.api.prompt_encoder import WANTED, Prompt, is_single, spelled
from graphml.api.request_handle import SCORES, generate
from graphml.api.saved_session import AnyPath, restore_session
from graphml.api.session import Session
from graphml.api.token_stream import Result
from graphml.api.tools import tools_of
from graphml.errors import GraphmlError, TokenizerError, UsageError
from graphml.ir.cells import MAX_CELLS
from graphml.options.argument_checks import count_or_none, items_of, whole_number
from graphml.options.option_fields import Whole
from graphml.runtime.blocks.overflow import DROP_TURNS, ChatOverflow, Overflow
from graphml.runtime.programs.adapter_options import Layers, Scaled, with_adapters, with_control
from graphml.runtime.sessions.committed import Committed
from graphml.runtime.sessions.pinned import Room
from graphml.runtime.steps.cell_mover import check_shifts
from graphml.sampling import SamplingParams, changed_params, checked_params
from graphml.system.closing import Closing
from graphml.system.notebook_html import html_table
from graphml.text.messages import Message


class Model(EmbeddingModel, Closing):
    """An open model. Made by `load`; close it, or use it in a `with`, to give threads and file back.

    draft: of `load`. default_n_ctx: its n_ctx, of sessions, chats and engines that have none of their own.
    What the file says of it: see `OpenModel`.
    """

    draft: DraftModel | None = None
    default_n_ctx: int | None = None

    @hinted
    def session(
        self,
        n_ctx: int | None = None,
        seed: int | None = None,
        *,
        capture: Patterns = (),
        patch: Patches | None = None,
        history: bool = False,
        lora: Scaled | None = None,
        control_vectors: Scaled | None = None,
        control_layers: Layers | None = None,
        prefix_cache: bool = True,
    ) -> Session:
        """Begin a session of at most `n_ctx` tokens (None: as `load` says, else all it was trained for).

        seed: of its random generator; None: a random one. Sessions are independent of one another; they may
        run in several threads, and share steps then where the backend can. prefix_cache: a prompt's beginning
        that another session holds is copied and not computed, and others copy from this one.

        capture: names of values, or patterns such as "layers.*.attention", or a list of them, to find in
        `Session.captured` after each evaluation; history: keep those of earlier ones too. patch: name or
        pattern -> function; what it makes of a value (an array of its own) is what readers see, None leaves
        it. A pattern that names no value is a UsageError.

        lora, control_vectors, control_layers: as of `load`, in place of the model's; see `Session.set_lora`.
        """
        size, executor = self._context(n_ctx), self.executor
        options = with_adapters(executor.options, executor.file, lora, executor.encodes)
        options = with_control(options, executor.file, control_vectors, control_layers)
        probe = Probe(executor, capture, patch, history, options)
        own = executor, self._prompts, size, seed, self._progress, probe
        return Session(*own, prefix_cache=prefix_cache, draft=self.draft)

    def moved(self, session: Session) -> Session:
        """A session that goes on from another one, of this file opened with another backend.

        Its tokens are evaluated again here; nothing is read from the other's device, which may be lost. The
        random numbers go on too. Adapters, control vectors and captures are this model's. UsageError for a
        session of another model.
        """
        moved = self.session(session.n_ctx)
        try:
            moved.go_on_from(session)
        except BaseException:
            moved.close()
            raise
        return moved

    def batch(self, n_sequences: int, n_ctx: int | None = None, seed: int | None = None) -> Batch:
        """Begin sessions of at most `n_ctx` tokens each that are continued together; see `Batch`.

        A step reads the weights once for all of them, so that four sequences take hardly longer than one.
        seed: of the first session's random generator, one more for each further one; None: random ones.
        """
        size, count = self._context(n_ctx), Whole(1).read("n_sequences", n_sequences)
        if count > self.executor.n_batch:
            raise UsageError(f"n_sequences: wanted at most n_batch = {self.executor.n_batch}; got {count}")
        room = Room(self.executor, self.executor.options, size, count)
        first = None if seed is None else whole_number(seed)
        return Batch(
            self.executor,
            [
                Session(
                    self.executor,
                    self._prompts,
                    size,
                    seed if first is None else first + i,
                    self._progress,
                    held=Committed(sequence),
                )
                for i, sequence in enumerate(room.all_pinned())
            ],
        )

    @hinted
    def engine(
        self,
        kv_memory: float | None = None,
        max_sequences: int | None = None,
        target_itl_ms: float = 50.0,
        prefix_cache: bool = True,
        store: AnyPath | None = None,
        deterministic: bool | None = None,
        *,
        store_bytes: int | None = None,
        n_ctx: int | None = None,
        overflow: str = "stop",
        keep: int = 0,
    ) -> Engine:
        """Begin an engine: requests from any thread that share steps, blocks of the cache, and prefixes.

        kv_memory: bytes of keys and values (a whole number), or a share of the free memory (up to 1.0); None:
        half of it, and no more than all sequences can fill. max_sequences: run at a time; None: 8. More wait.
        target_itl_ms: milliseconds between two tokens of a sequence, while others' prompts are computed; up
        to twice as many while many prompts wait.
        prefix_cache: ids that an earlier request held are not computed again. store: a folder where these are
        kept on disk, for later processes too; store_bytes: most bytes of it, None: 8 GiB. deterministic: a
        request's logits are the same bits whatever runs beside it; a UsageError unless the model was opened
        so; None: as the model was opened. n_ctx: most tokens of a sequence; None: all that the model was
        trained for. overflow, keep: what a full context does where a request does not say, as of
        `Session.generate`.
        """
        check_deterministic(self.executor, deterministic)
        size = self._context(n_ctx)
        return Engine(
            self.executor, self._prompts, size, kv_memory, max_sequences, target_itl_ms,
            prefix_cache, store, store_bytes, Overflow(overflow, keep), self.draft,
        )  # fmt: skip

    @overload
    def generate(
        self, prompts: str, params: SamplingParams | None = None, max_tokens: int | None = None,
        seed: int | None = None, **sampling: Any,
    ) -> Result: ...  # fmt: skip
    @overload
    def generate(
        self, prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None, max_tokens: int | None = None,
        seed: int | None = None, **sampling: Any,
    ) -> Any: ...  # fmt: skip
    @hinted
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        *,
        stream: bool = False,
        **sampling: Any,
    ) -> Any:
        """Continue a prompt, or any number of them, in an engine of their own.

        A `Result` of one prompt, which is a text, messages or ids; a list of results in their order of a list
        of prompts. params: for all, or for each its own; sampling: fields of `SamplingParams` as keywords,
        which change them. seed: of the first one's random generator, one more for each further one. stream:
        of one prompt return what `stream` does. Errors as of `Engine.submit`; then nothing is returned.
        """
        if stream and not is_single(prompts):
            raise UsageError("stream: wanted one prompt; got several, or none")
        if stream:
            return self.stream(prompts, params, max_tokens, seed, **sampling)  # type: ignore[arg-type] # it checks
        every: list[Any] = [prompts] if is_single(prompts) else items_of("prompts", prompts, WANTED)
        done = []
        with self.engine() as engine:
            for result in generate(engine, every, params, max_tokens, seed, sampling):
                done.append(result)
                self._progress("generate", len(done), len(every))
        return done[0] if is_single(prompts) else done

    @hinted
    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        **sampling: Any,
    ) -> Iterator[str]:
        """Continue a prompt, its text piece by piece as it comes: together what `generate` returns as text.

        In an engine of its own, which ends with the loop. Arguments and errors as of `Engine.submit`.
        """
        handle = self.engine().submit(prompt, params, max_tokens, seed, **sampling)
        return (token.piece for token in handle if token.piece)

    async def agenerate(self, prompt: Prompt, *args: Any, **kwargs: Any) -> Result:
        """What `generate` returns for one prompt, while other tasks of the event loop run."""
        async with self.engine() as engine:
            return await engine.submit(prompt, *args, **kwargs)

    async def astream(self, prompt: Prompt, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        """What `stream` gives, while other tasks of the event loop run."""
        async with self.engine() as engine:
            async for token in engine.submit(prompt, *args, **kwargs):
                if token.piece:
                    yield token.piece

    def __call__(self, prompt: Prompt | Sequence[Prompt], *args: Any, **kwargs: Any) -> Any:
        """Of a text or messages what `generate` returns; of ids what `logits` returns, [n_ids, n_vocab]."""
        function: Any = self.generate if spelled(prompt) else self.logits
        return function(prompt, *args, **kwargs)

    @hinted
    def fill(
        self,
        prefix: str,
        suffix: str = "",
        params: SamplingParams | None = None,
        max_tokens: int | None = MAX_TOKENS,
        *,
        extra: Files = (),
        order: str = "psm",
        n_ctx: int | None = None,
        seed: int | None = None,
        **sampling: Any,
    ) -> AnswerText:
        """The text between a prefix and a suffix, by the fill-in-the-middle tokens of the vocabulary.

        Its `stop_reason` is "length" where max_tokens cut it off.

        extra: (name, text) of other files, the nearest last; order: `psm` (prefix first) or `spm` (suffix
        first), as the model was trained. What has no room in the context is left out: of the prefix its
        beginning, of the suffix its end, of the files the first ones. UsageError for a model without the
        tokens, which names those it lacks.
        """
        ids = self.fill_ids(prefix, suffix, extra, order, max_tokens, n_ctx)
        return filled(self, ids, changed_params(params, sampling), max_tokens, n_ctx, seed)

    def fill_ids(
        self,
        prefix: str,
        suffix: str = "",
        extra: Files = (),
        order: str = "psm",
        max_tokens: int | None = MAX_TOKENS,
        n_ctx: int | None = None,
    ) -> list[int]:
        """The ids that `fill` continues, for a session or `Engine.submit`; errors as of `fill`."""
        return fill_ids(self, prefix, suffix, extra, order, max_tokens, n_ctx)

    def heal(self, prompt: Prompt, params: SamplingParams | None = None) -> HealedPrompt:
        """A prompt without its last token, and params by which the text begins with what that spelled.

        For a session or `Engine.submit`: what is generated begins with `HealedPrompt.text`. prompt: a text,
        or ids. UsageError for params that have a grammar or the like already.
        """
        params, checked = checked_params(params), self.prompt_ids(prompt)
        if self.tokenizer is None:
            raise TokenizerError(f"{self.path}: heal: wanted a model with a vocabulary; it has none")
        return healed(self.tokenizer, checked, params)

    @hinted
    def beam_search(
        self,
        prompt: Prompt,
        beams: int = 4,
        max_tokens: int = MAX_TOKENS,
        *,
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        stop_tokens: Iterable[int] = (),
    ) -> list[Beam]:
        """The `n_best` most likely continuations among `beams` that go on together, the best first.

        They are compared by the sum of log-probabilities / length ** length_penalty: 0 is the sum, 1 the
        mean; an end token counts. early_stopping: it ends when as many as `beams` have ended; False: and
        when none of those that go on is better now; "never": when none can become better. stop_tokens end a
        text besides those of the vocabulary. UsageError for other arguments, a prompt without room, and
        models with windows (unless opened with swa_full), with an encoder, or that do not continue texts.
        """
        how = n_best, length_penalty, early_stopping, stop_tokens
        return beam_search(self, prompt, beams, max_tokens, *how)

    @hinted
    def guided(
        self,
        prompt: Prompt,
        negative_prompt: Prompt | None = None,
        guidance_scale: float = 1.5,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        **sampling: Any,
    ) -> Result:
        """Continue a prompt with classifier-free guidance, away from what follows a negative prompt.

        Logits are negative + guidance_scale * (prompt - negative), of log-probabilities; negative_prompt
        None: the prompt's last token alone, so that the prompt counts more. Both sequences share their steps.
        In an engine of its own; `Engine.submit` has the same arguments. UsageError for a model with an
        encoder, and a scale that is not from 0 to 100.
        """
        with self.engine() as engine:
            how: Any = {"guidance_scale": guidance_scale, "negative_prompt": negative_prompt}
            return engine.submit(prompt, params, max_tokens, seed, **how, **sampling).result()

    @hinted
    def best_of(
        self,
        prompt: Prompt,
        n: int,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        by: str = "mean",
        **sampling: Any,
    ) -> Result:
        """The most likely of `n` sampled continuations, by the mean or the sum of log-probabilities.

        In an engine of its own; `Engine.submit(..., n=n).best(by)` does it in another. params: without a
        temperature all are the same.
        """
        if by not in SCORES:
            raise UsageError(f"by: wanted one of {', '.join(SCORES)}; got {by!r}")
        params = changed_params(params, sampling)
        if params.logprobs is None:
            params = replace(params, logprobs=0)
        with self.engine() as engine:
            return engine.submit(prompt, params, max_tokens, seed, n).best(by)

    def _context(self, n_ctx: int | None) -> int:
        """The tokens that a session is to hold."""
        self._open()
        if not self.executor.generates:
            raise UsageError(f"{self.path}: {self.arch} gives embeddings, no logits: see embed")
        limit, why = min(self.executor.longest, MAX_CELLS), "the context the model was trained for"
        stated = self.executor.file.metadata.integer(f"{self.arch}.context_length", limit)
        if limit < min(stated, MAX_CELLS):
            why = f"as much of the model's context of {stated} as this architecture computes"
        if limit < self.n_ctx and self.executor.denoises:
            why = "n_batch (--batch): a step of a diffusion model computes all of it"
        asked = self.default_n_ctx if n_ctx is None else n_ctx
        size = limit if asked is None else whole_number(asked)
        if size is None or not 1 <= size <= limit:
            raise UsageError(f"n_ctx: wanted 1 to {limit}, {why}; got {asked!r}")
        return size

    @overload
    def chat(
        self, prompt: str | Sequence[Message], max_tokens: int | None = None, *, stream: Literal[True],
        **how: Any,
    ) -> Iterator[str]: ...  # fmt: skip
    @overload
    def chat(
        self, prompt: str | Sequence[Message] = (), max_tokens: int | None = None, **how: Any
    ) -> Chat: ...
    @hinted
    def chat(
        self,
        prompt: str | Sequence[Message] = (),
        max_tokens: int | None = None,
        *,
        system: str = "",
        messages: Iterable[Message] = (),
        n_ctx: int | None = None,
        seed: int | None = None,
        variables: dict[str, Any] | None = None,
        overflow: str = DROP_TURNS,
        keep: int = 0,
        reasoning_format: str = "auto",
        chat_format: str | None = None,
        capture: Patterns = (),
        history: bool = False,
        tools: Any = None,
        params: SamplingParams | None = None,
        stream: bool = False,
        **sampling: Any,
    ) -> Chat | Iterator[str]:
        """Begin a conversation in a session of its own; see `Chat`, and `session` for capture and history.

        prompt: a message of the user as text, or messages, behind `system` and `messages` if there are any.
        Where the conversation then ends with the user's message (or a tool's result), it is answered at once:
        `str(chat)` is the answer; else `respond` and `stream` answer what they are given. max_tokens (None:
        no limit but the context; `Chat.stop_reason` is what ended an answer), params, seed, sampling: of
        this answer, and of later ones that say nothing else. stream: return this answer's pieces as they
        come, and no `Chat`.
        overflow: what a full context does: `drop_turns` leaves the oldest turns out of the prompt, whole (see
        `Chat.dropped`); others and keep as of `Session.generate`; -1 keeps the first turn.
        reasoning_format, chat_format: how reasoning and calls are told from text, as of `ChatSettings`.
        tools: of each answer that is given none of its own, as of `Chat.events`.
        """
        if self.executor.encodes:
            raise UsageError(f"{self.path}: {self.arch} answers single texts: see Session.generate")
        full, tokenizer, offered = ChatOverflow(overflow, keep), self._needed(), tools_of(tools)
        begins, most = first_messages(system, messages, prompt), count_or_none("max_tokens", max_tokens)
        chosen = changed_params(params, sampling) if params is not None or sampling else None
        asked = ChatSettings((), "auto", None, variables or {}, reasoning_format, chat_format)
        _ = self.template  # one that fails is told at once
        if full.shifts:
            check_shifts(self.executor, "overflow")
        session = self.session(n_ctx, seed, capture=capture, history=history)
        chat = Chat(session, tokenizer, self.templates, most, asked, full, offered, chosen)
        chat.history = begins
        try:
            if stream:
                return chat.stream()
            if begins and begins[-1]["role"] in ("user", "tool"):
                chat.respond()
        except BaseException:
            session.close()
            raise
        return chat

    def restore(self, path: AnyPath) -> Session | Chat:
        """The session or chat that was saved to a file, which goes on as the saved one would have.

        UsageError with the reason for a file of another model, cache type (`kv`) or version of the format,
        and for one that is damaged. The backend may be another one; results then differ by rounding.
        """
        held, settings, chat = restore_session(self.executor, path, self._context)
        own = self.executor, self._prompts, settings.n_ctx, settings.seed, self._progress
        session = Session(*own, held=held, prefix_cache=False, draft=self.draft)  # perhaps of another backend
        session.numbers, session.chooses = settings.numbers, settings.params
        session.numbers.vocabulary = self.tokenizer
        if chat is None:
            return session
        try:
            return Chat.restored(session, self._needed(), self.templates, chat)
        except GraphmlError as error:
            session.close()
            raise UsageError(f"{path}: {error}") from None

    def close(self) -> None:
        """Give threads, programs and file back; its sessions end. A second call does nothing."""
        if self.draft is not None:
            self.draft.close()
        self._texts.close()
        self.executor.close()

    def __repr__(self) -> str:
        sizes = f"{self.n_params:,} parameters, context of {self.n_ctx} tokens"
        return f"Model({str(self.path)!r}, {self.arch}, {sizes}, backend {self.executor.backend.name})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), ("configuration", "value"), sorted(vars(self.config).items()))
