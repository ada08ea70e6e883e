"""A chat with a server of OpenAI's protocol: messages are kept here, each answer is a streamed request.

Sampling parameters become fields by OpenAI's names and llama-server's. Knows that protocol; nothing of
sockets or terminals.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphml.api.chat_prompt import NONE, ChatSettings
from graphml.api.message_list import MessageList
from graphml.api.saved_session import AnyPath
from graphml.api.stats import Stats
from graphml.api.tool_rounds import MAX_ROUNDS, ChatEvent, Confirm, calls_of, rounds
from graphml.api.tools import tools_of
from graphml.cli.conversation.server_stream import ServerStream
from graphml.errors import ServerError, UsageError
from graphml.options.option_fields import options_of
from graphml.sampling import SamplingParams
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.sampling.settings.params import DIFFUSION
from graphml.text.answers import (
    Answer,
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCall,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)

PATH = "/v1/chat/completions"


@dataclass
class ServerSession:
    """What is known of the latest answer, by the names of a session's. n_ctx: 0 where it is unknown."""

    server: ServerStream
    seed: int = -1
    n_ctx: int = 0
    n_past: int = 0
    stop_reason: str | None = None
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)

    def cancel(self) -> None:
        """End the answer that is streamed."""
        self.server.cancel()

    def set_seed(self, seed: int | None) -> None:
        """Of the answers from now on; None: a random one."""
        self.seed = -1 if seed is None else seed


class ServerChat(MessageList):
    """A conversation with the model of a server. max_tokens: most of an answer, None: no limit here."""

    def __init__(
        self,
        server: ServerStream,
        system: str = "",
        max_tokens: int | None = None,
        seed: int | None = None,
        variables: Mapping[str, Any] | None = None,
        reasoning_format: str = "auto",
    ) -> None:
        self.session, self.max_tokens = ServerSession(server), max_tokens
        self.session.set_seed(seed)
        self._server, self._reasoning_format = server, reasoning_format
        self._variables, self._model = dict(variables or {}), "default"
        self.stated: Collection[str] = ()  # settings that are sent though they are `SamplingParams`' defaults
        super().__init__(system)

    def greeted(self) -> str:
        """The name of the server's first model, which is then asked; ServerError where no server answers."""
        listed = self._server.get("/v1/models").get("data")
        names = [model.get("id") for model in listed or () if isinstance(model, dict)]
        self._model = str(names[0]) if names else self._model
        try:
            settings = self._server.get("/props").get("default_generation_settings")
            self.session.n_ctx = int(settings["n_ctx"])
        except (ServerError, TypeError, KeyError, ValueError):  # llama-server's alone
            self.session.n_ctx = 0
        return self._model

    def save(self, path: AnyPath) -> None:
        """Not possible: what was evaluated is the server's."""
        raise UsageError(
            f"{path}: wanted a name for the messages, as talk.json: a whole chat is the server's"
        )

    def events(
        self, params: SamplingParams, *, tools: Any = None, confirm: Confirm | None = None
    ) -> Iterator[ChatEvent]:
        """The events of an answer, as of `Chat.events`: functions that are called run here."""
        settings = ChatSettings(tools_of(tools))
        if not settings.tools:
            return self._answer(params, settings)
        return rounds(
            settings, MAX_ROUNDS, lambda now: self._answer(params, now),
            lambda: self._calls(settings), self._messages.append, confirm,
        )  # fmt: skip

    def _calls(self, settings: ChatSettings) -> list[ToolCall]:
        """The calls of the latest answer, all of them of tools that were offered."""
        calls = calls_of(self._messages[-1])
        if strange := {call.name for call in calls} - {tool.name for tool in settings.tools}:
            raise ServerError(
                f"{self._server.address}: the model calls {min(strange)!r:.80}, which is no tool"
            )
        return calls

    def regenerate_events(self, params: SamplingParams) -> Iterator[Event]:
        """Another answer to the last message."""
        self._last_of_user("regenerate")
        return self._replace(
            lambda: self._answer(params, ChatSettings()), lambda: self.session.stop_reason == "cancel"
        )

    def _answer(self, params: SamplingParams, settings: ChatSettings) -> Iterator[Event]:
        """The events of one answer; without an error it is appended, as far as it came."""
        session, reading, begin = self.session, _Reading(), time.perf_counter()
        session.stop_reason, session.stats = None, Stats()
        session.logprobs.clear()
        answer = Answer()
        for chunk in self._server.events(PATH, self._body(params, settings)):
            try:
                events = reading.push(chunk, session.logprobs)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise ServerError(f"{self._server.address}: a chunk is not as OpenAI's are") from None
            answer.add(events)
            yield from events
        rest = reading.finish()
        answer.add(rest)
        yield from rest
        if reading.reason is None and not self._server.cancelled:
            raise ServerError(f"{self._server.address}: the answer broke off")
        self._messages.append(answer.message())
        session.stats = reading.stats(begin)
        session.n_past = session.stats.n_prompt + session.stats.n_gen
        session.stop_reason = self._reason(reading)

    def _reason(self, reading: _Reading) -> str:
        if self._server.cancelled:
            return "cancel"
        if reading.reason != "length":
            return "end"
        full = self.max_tokens is None or 0 < self.session.n_ctx <= self.session.n_past
        return "context" if full else "length"

    def _body(self, params: SamplingParams, settings: ChatSettings) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model, "messages": self._messages, "stream": True,
            "stream_options": {"include_usage": True}, **fields_of(params, self.stated),
        }  # fmt: skip
        if settings.tools:
            body["tools"] = [tool.as_openai() for tool in settings.tools]
            if settings.tool_choice == NONE:
                body["tool_choice"] = NONE
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.session.seed >= 0:
            body["seed"] = self.session.seed
        if self._variables:
            body["chat_template_kwargs"] = self._variables
        if self._reasoning_format != "auto":
            body["reasoning_format"] = self._reasoning_format
        return body


class _Reading:
    """Reads the chunks of one answer."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._times: list[float] = []
        self._open: int | None = None  # the call that is being written
        self._arguments = ""

    def push(self, chunk: dict[str, Any], logprobs: list[TokenLogprobs]) -> list[Event]:
        """The events of a chunk; its tokens' log-probabilities are appended."""
        self._usage = chunk.get("usage") or self._usage
        events: list[Event] = []
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self.reason = choice.get("finish_reason") or self.reason
            logprobs += map(_scored, (choice.get("logprobs") or {}).get("content") or ())
            if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
                events.append(ReasoningDelta(reasoning))
            if delta.get("content"):
                events.append(ContentDelta(delta["content"]))
            for part in delta.get("tool_calls") or ():
                events += self._call(part)
        if events:
            self._times.append(time.perf_counter())
        return events

    def finish(self) -> list[Event]:
        """The last call ends; one whose arguments are no object is none."""
        if self._open is None:
            return []
        index, self._open = self._open, None
        try:
            whole = isinstance(json.loads(self._arguments or "{}"), dict)
        except (ValueError, RecursionError):
            whole = False
        empty: list[Event] = [] if self._arguments else [ToolCallDelta(index, "{}")]
        return [*empty, ToolCallEnd(index, whole)]

    def _call(self, part: dict[str, Any]) -> list[Event]:
        index, function = int(part.get("index") or 0), part.get("function") or {}
        events: list[Event] = []
        if index != self._open:
            events += self.finish()
            self._open, self._arguments = index, ""
            name = str(function.get("name") or "")
            events.append(ToolCallBegin(index, str(part.get("id") or f"call_{index}"), name))
        if text := function.get("arguments"):
            self._arguments += text
            events.append(ToolCallDelta(index, text))
        return events

    def stats(self, begin: float) -> Stats:
        """Counts as the server reports them, times as they were here."""
        n_gen = int(self._usage.get("completion_tokens") or len(self._times))
        n_prompt = int(self._usage.get("prompt_tokens") or 0)
        n_cached = int((self._usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        if not self._times:
            return Stats(n_prompt=n_prompt, n_cached=n_cached, n_gen=n_gen)
        first, rest = self._times[0] - begin, self._times[-1] - self._times[0]
        return Stats(
            n_prompt=n_prompt, n_cached=n_cached, n_gen=n_gen, ttft_s=first,
            prefill_tps=(n_prompt - n_cached) / first if first else 0.0,
            gen_tps=(n_gen - 1) / rest if rest and n_gen > 1 else 0.0,
        )  # fmt: skip


def _scored(entry: dict[str, Any]) -> TokenLogprobs:
    """A token's entry; what OpenAI's protocol does not have is unknown: id and rank."""
    text = str(entry.get("token") or "")
    spelled = bytes(entry["bytes"]) if entry.get("bytes") else text.encode()
    entropy = entry.get("entropy")
    known = float(entropy) if isinstance(entropy, int | float) else math.nan
    return TokenLogprobs(int(entry.get("id") or 0), spelled, float(entry["logprob"]), 0, known)


SAME = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "min_keep", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "repeat_last_n", "repeat_penalty",
    "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta",
    "adaptive_target", "adaptive_decay", "samplers", "stop", "grammar", "regex", *DIFFUSION,
)  # fmt: skip
"""Fields of the same name and meaning."""
OTHERS = ("logit_bias", "json_schema", "logprobs")
_DEFAULTS = SamplingParams()


def fields_of(params: SamplingParams, asked: Collection[str] = ()) -> dict[str, Any]:
    """The fields; what is as by default is left to the server, but for those that are asked for.

    UsageError for a setting that requests have no field for.
    """
    stated = options_of(SamplingParams)
    changed = {name for name in stated if getattr(params, name) != getattr(_DEFAULTS, name)}
    if strange := sorted(changed - {*SAME, *OTHERS}):
        raise UsageError(f"{stated[strange[0]].flags[-1]}: wanted no --server: requests have no field for it")
    wanted = changed.union(asked)
    fields = {name: _plain(getattr(params, name)) for name in SAME if name in wanted}
    if params.logit_bias:
        biases = params.logit_bias.items()
        fields["logit_bias"] = [[id, bias if math.isfinite(bias) else False] for id, bias in biases]
    if params.json_schema:
        schema = {"name": "answer", "schema": json.loads(params.json_schema), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if params.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": params.logprobs}
    return fields


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
