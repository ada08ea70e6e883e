"""What all handlers share: the model's engine, its name, its template, and the way from a request to tokens.

Knows requests' common fields; nothing of a protocol's answers.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from starlette.requests import Request

import graphml
from graphml.api.denoising import check_kind
from graphml.api.draft_choice import draft_kind
from graphml.api.model import Model
from graphml.api.request_probes import NOT_PROBED, Probed
from graphml.api.stats import EngineStats
from graphml.api.token_stream import Result
from graphml.api.tokens import Token
from graphml.errors import TokenizerError
from graphml.sampling.settings.params import LLAMA_SERVER
from graphml.sampling.settings.sampling_defaults import ChosenSampling, chosen_sampling
from graphml.server.engine.engine_access import EngineAccess, InFlight
from graphml.server.engine.model_facts import listing_of, properties_of
from graphml.server.engine.running_request import Generation
from graphml.server.engine.stored_responses import StoredResponses
from graphml.server.observing.request_log import ModelOperation
from graphml.server.observing.server_metrics import SequenceUse, ServerMetrics
from graphml.server.options.api_keys import ApiKeys
from graphml.server.options.chat_templates import CHATML
from graphml.server.options.server_options import ServerOptions
from graphml.server.requests.prompts import prompts_of
from graphml.server.requests.request_fields import ChatCompletion, Sampling
from graphml.server.requests.sampling_settings import RequestSettings, settings_of
from graphml.server.responses.api_errors import ApiError, Style, wrong_field
from graphml.server.responses.event_stream import EventStream
from graphml.server.responses.resumable_streams import ResumableStreams
from graphml.text.chat_template import DEFAULT_NAME, ChatTemplate
from graphml.text.tokenizer import Tokenizer

FINGERPRINT = f"b1-graphml-{graphml.__version__}"
STOP_TYPES = {"end": "eos", "stop": "word", "length": "limit", "context": "limit", "deadline": "limit"}
ALNUM = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SALTS = itertools.count()
LARGEST_SCALE = 1e6
"""Of an adapter."""


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return prefix + "".join(secrets.choice(ALNUM) for _ in range(32))


ASKED_NAME: ContextVar[str] = ContextVar("asked_name", default="")
"""The model's name in the request that is answered, where it is one of the model's names."""


class SharedParts:
    """What all models of a server have in common: keys, counts, streams and stored responses.

    options: of the server as a whole. services: the open ones. replays: stored responses that each key reads
    as events now.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.keys = ApiKeys(options.api_keys, options.api_key_file, options.file_keys)
        self.metrics, self.streams, self.in_flight = ServerMetrics(), ResumableStreams(), InFlight()
        limits = options.limits
        self.responses = StoredResponses(
            limits.stored_responses, limits.stored_bytes, limits.stored_each_bytes
        )
        self.services: list[Service] = []
        self.replays = Counter[str | None]()

    def stream(
        self,
        request: Request,
        events: AsyncGenerator[bytes, None],
        cancel: Callable[[], None],
        ping: float | None = None,
        style: Style = "openai",
    ) -> EventStream:
        """The response of events, kept for another connection where the request names its stream.

        ping: seconds of silence until a comment is sent, None as the server does; others as of `EventStream`.
        """
        name = request.headers.get("x-conversation-id")
        if name is not None:
            whose = request.scope.get("graphml.key"), name
            events, cancel = self.streams.begin(whose, events, cancel, style), lambda: None
        ping = self.options.ping if ping is None else ping
        return EventStream(events, ping, self.options.timeout, cancel, style)

    def is_admin(self, key: str | None) -> bool:
        """Whether a request of this key may change, and see, what others get; any may where no keys are."""
        use = self.keys.use_of(key)
        return key is None or bool(use is not None and use.limits.admin)


class ClosedModel:
    """What is still said of a service that has been closed; it holds nothing of its model."""

    def __init__(self, service: Service) -> None:
        self.options, self.lora_scales = service.options, service.access.lora_scales
        self._listing, self._properties = service.listing(), service.properties() | {"is_sleeping": True}
        self._stats = service.stats()

    def listing(self) -> dict[str, Any]:
        """What `GET /v1/models` answers."""
        return self._listing

    def properties(self) -> dict[str, Any]:
        """What `GET /props` answered while it was open, and that it sleeps."""
        return self._properties

    def stats(self) -> EngineStats | None:
        """Counts of its engine when it was closed, if it had one."""
        return self._stats


class Service:
    """A model that is served. shared: with the server's other models. name: None: an alias, or the file's.

    views: handlers of the page's engine view, by name, once they are asked for.
    """

    def __init__(
        self, model: Model, options: ServerOptions, shared: SharedParts | None = None, name: str | None = None
    ) -> None:
        self.model = model
        self.shared = shared = shared or SharedParts(options)
        asked = dict.fromkeys(options.asked, "the command line")
        usual = {name: x for name, x in LLAMA_SERVER.items() if getattr(options.params, name) == x}
        stated = model.sampling_defaults
        self.sampling: ChosenSampling = chosen_sampling(options.params, asked, stated, usual)
        check_kind(model.executor, self.sampling.params, model.executor.options)
        kind = draft_kind(self.sampling.params, model.executor, model.draft)
        self.options = options = replace(options, params=replace(self.sampling.params, spec_type=kind))
        self.keys = shared.keys
        self.access: EngineAccess = EngineAccess(model, options, self.keys, shared.metrics, shared.in_flight)
        self.name = name or (sorted(options.aliases)[0] if options.aliases else model.path.name)
        self.began = int(time.time())
        self.views: dict[str, Callable[[Request], Awaitable[Any]]] = {}
        shared.services.append(self)

    def listing(self) -> dict[str, Any]:
        """What `GET /v1/models` answers."""
        return listing_of(self)

    def properties(self) -> dict[str, Any]:
        """What `GET /props` answers."""
        return properties_of(self, FINGERPRINT)

    def stats(self) -> EngineStats | None:
        """Counts of its engine, if there is one."""
        return self.access.stats()

    def close(self) -> None:
        """Close engine and model."""
        if self in self.shared.services:
            self.shared.services.remove(self)
        self.access.close()
        self.model.close()

    @property
    def answers_as(self) -> str:
        """What answers call the model: as the request does, where that is one of its names; else `name`."""
        return ASKED_NAME.get() or self.name

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; TokenizerError without one."""
        if self.model.tokenizer is None:
            raise TokenizerError("the model has no vocabulary")
        return self.model.tokenizer

    @property
    def templates(self) -> Mapping[str, ChatTemplate]:
        """The model's chat templates by name, or ChatML for a model without one."""
        if self.model.has_template:
            return self.model.templates
        tokenizer = self.tokenizer
        bos, eos = (
            None if token is None else tokenizer.piece(token) for token in (tokenizer.bos, tokenizer.eos)
        )
        return {DEFAULT_NAME: ChatTemplate(CHATML, bos, eos)}

    def without_folders(self, text: str) -> str:
        """A text with the files that are served named without their folders."""
        paths = (self.model.path, self.options.slot_save_path, *(path for path, _ in self.options.loras))
        for folder in {path.parent for path in paths if path is not None}:
            text = text.replace(f"{folder}/", "")
        return text

    def salt_of(self, request: Request, sampling: Sampling) -> bytes:
        """What keeps a request's prefixes apart from those of others."""
        cached = self.options.cache_prompt if sampling.cache_prompt is None else sampling.cache_prompt
        if not cached:
            return b"request %d" % next(_SALTS)
        return self.salt_of_key(request.scope.get("graphml.key"))

    def salt_of_key(self, key: str | None) -> bytes:
        """What keeps a key's prefixes apart: else the time to a first token tells what others have asked."""
        apart = key and not self.options.share_prefixes
        return b"key " + self.keys.folder_of(key).encode() if apart else b""

    async def begin(
        self,
        request: Request,
        sampling: Sampling,
        prompts: Callable[[], tuple[list[list[int]], RequestSettings]],
        probed: Callable[[list[int], RequestSettings], Probed] = lambda ids, settings: NOT_PROBED,
    ) -> list[Generation]:
        """Have the engine continue what a request asks for; `prompts` runs in a thread.

        probed: what is captured and patched of a prompt with these ids.
        """
        arrived = request.scope.get("graphml.arrived", time.monotonic())
        if self.access.draining:
            raise ApiError(503, "the server is shutting down")
        lora = self.lora_of(sampling)

        def submit() -> list[Generation]:
            every, settings = prompts()
            key, salt = request.scope.get("graphml.key"), self.salt_of(request, sampling)
            n_tokens = sum(map(len, every))
            with self.access.all_or_none(len(every) * settings.n, n_tokens, key) as generations:
                for ids in every:
                    generations.append(
                        self.access.submit(
                            ids, settings, arrived, salt=salt, key=key, keep=sampling.n_keep, lora=lora,
                            priority=self.priority_of(key, sampling), deadline=sampling.deadline,
                            id_slot=sampling.id_slot, probed=probed(ids, settings),
                        )
                    )  # fmt: skip
            request.scope.setdefault("graphml.generations", []).extend(generations)
            name = "chat" if isinstance(sampling, ChatCompletion) else "text_completion"
            request.scope["graphml.operation"] = ModelOperation(name, self.name, bool(sampling.stream))
            return generations

        return await self.access.in_thread(request, submit)

    def prompts_of(self, prompt: Any) -> list[list[int]]:
        """The ids of each prompt of a request; ApiError 400 for what is none."""
        return prompts_of(prompt, self.tokenizer, self.options.limits.prompts, self.access.n_ctx)[0]

    def settings(self, sampling: Sampling) -> RequestSettings:
        """How a request wants its text sampled."""
        return settings_of(sampling, self.options, self.tokenizer)

    def is_admin(self, key: str | None) -> bool:
        """As of `SharedParts`."""
        return self.shared.is_admin(key)

    def priority_of(self, key: str | None, sampling: Sampling) -> int:
        """The priority of a request: at most that of its key, if that has one."""
        most, wanted = self.access.limits_of(key).priority, sampling.priority or 0
        return wanted if most is None else min(most, wanted)

    def lora_of(self, sampling: Sampling) -> list[tuple[str, float]] | None:
        """The adapters that a request names by number, each with its scale; others of the server count 0."""
        if sampling.lora is None:
            return None
        scales = dict.fromkeys(range(len(self.options.loras)), 0.0)
        for adapter in sampling.lora:
            number: Any = adapter.get("id")
            scale: Any = adapter.get("scale")
            known = type(number) is int and number in scales
            if not known or type(scale) not in (int, float) or not abs(scale) <= LARGEST_SCALE:
                raise wrong_field("lora", "wanted objects with the id of an adapter and a scale")
            scales[number] = float(scale)
        return [(str(self.options.loras[number][0]), scale) for number, scale in scales.items()]


async def merged(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, Token]]:
    """Tokens of several prompts as they come, each with the number of its answer."""
    if len(generations) == 1:
        async for token in generations[0].tokens():
            yield token.index, token
        return
    queue: asyncio.Queue[tuple[int, Token] | BaseException | None] = asyncio.Queue(maxsize=256)

    async def read(number: int, generation: Generation) -> None:
        try:
            async for token in generation.tokens():
                await queue.put((number * generation.settings.n + token.index, token))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    readers = [asyncio.ensure_future(read(i, generation)) for i, generation in enumerate(generations)]
    try:
        left = len(readers)
        while left:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for generation in generations:
            generation.cancel()


def cancel_all(generations: Sequence[Generation]) -> None:
    """Nobody wants them any more."""
    for generation in generations:
        generation.cancel()


async def all_finished(generations: Sequence[Generation]) -> None:
    """Return once all have ended; raises what one failed with."""
    async for _ in merged(generations):
        pass


def timings(result: Result) -> dict[str, Any]:
    """Times of an answer at its end, as llama-server writes them."""
    first_s, new = result.timings.ttft_s, result.n_prompt - result.n_cached
    rest_s = result.timings.total_s - first_s
    # Told where drafts were on, though none was made.
    drafted = {"draft_n": result.n_drafted, "draft_n_accepted": result.n_accepted}
    used = SequenceUse(result.n_prompt, result.n_cached, new, result.n_gen, first_s, rest_s)
    return used.timings | (drafted if result.drafting else {})


def usage(results: Sequence[Result]) -> dict[str, Any]:
    """Counts of tokens as OpenAI writes them; a prompt of several answers counts once."""
    prompt, generated = results[0].n_prompt, sum(result.n_gen for result in results)
    return {
        "completion_tokens": generated,
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": max(0, results[0].n_cached)},
    }
