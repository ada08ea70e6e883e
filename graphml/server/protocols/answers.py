"""Answers to conversations as events: text, reasoning and tool calls, of each of a request's sequences.

Knows generations and what reads their tokens; nothing of how a protocol writes events.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from starlette.requests import Request

from graphml.api.chat_prompt import ChatPrompt
from graphml.api.token_stream import Denoised, Result
from graphml.api.tokens import Token
from graphml.server.engine.running_request import Generation
from graphml.server.engine.service import Service
from graphml.server.protocols.answer_tokens import AnswerTokens
from graphml.server.protocols.conversations import conversation_of, ignored_tools
from graphml.server.requests.request_fields import ChatCompletion
from graphml.server.requests.sampling_settings import RequestSettings
from graphml.text.answers import Answer, ContentDelta, Event

LOG = logging.getLogger(__name__)
IGNORED: Final = b"X-Graphml-Ignored-Tools"
"""The header that names the types of tools that are no functions, of which the model is not told."""
UNFORCED: Final = b"X-Graphml-Unforced"
"""The header that names what of the tools' schemas calls may break, as no grammar can force it."""
MOST_NAMED: Final = 16
"""So many names are in one of these headers."""
_UNWRITABLE_PLACE: Final = re.compile(r"[^\w.:#/$-]", re.ASCII)
_UNWRITABLE: Final = re.compile(r"[^\w.-]", re.ASCII)


class AnswerSplitter(Protocol):
    """Tells an answer's parts apart, token by token."""

    answer: Answer

    @property
    def reasoned(self) -> bool:
        """Whether the end of the reasoning has come, where it has a mark."""

    def push(self, token: Token) -> list[Event]:
        """What became certain with a token."""

    def finish(self, stop_reason: str | None = None) -> list[Event]:
        """What was held back, at the answer's end, which came for this reason."""


class PlainReader:
    """All is text: of a request without tools, to a model that does not reason aloud."""

    reasoned = True

    def __init__(self) -> None:
        self.answer = Answer()

    def push(self, token: Token) -> list[Event]:
        """The token's piece of text."""
        events: list[Event] = [ContentDelta(token.piece)] if token.piece else []
        self.answer.add(events)
        return events

    def finish(self, stop_reason: str | None = None) -> list[Event]:
        """Nothing is held back."""
        return []


@dataclass
class Answering:
    """A prompt that is answered: the engine's part, a reader of each sequence, and whose its tokens are."""

    generation: Generation
    readers: list[AnswerSplitter] = field(default_factory=list)
    tokens: list[AnswerTokens] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = [AnswerTokens() for _ in self.readers]

    async def events(
        self, denoised: Callable[[Denoised], None] | None = None
    ) -> AsyncIterator[tuple[int, Token | None, list[Event]]]:
        """Number of the sequence, its token and what that means; without a token at the end.

        denoised: called with each step of a diffusion model, which comes as no event and no token.
        """
        tokens = self.generation.tokens() if denoised is None else self.generation.with_denoised()
        async for token in tokens:
            index = token.index
            if isinstance(token, Denoised):
                assert denoised is not None
                denoised(token)
                yield index, None, []
                continue
            reasoned = self.readers[index].reasoned
            events = self.readers[index].push(token)
            self.tokens[index].push(token, events, reasoned)
            yield index, token, events
        for index, reader in enumerate(self.readers):
            events = reader.finish(self.results[index].stop_reason)
            self.tokens[index].push(None, events)
            yield index, None, events

    @property
    def n_reasoning(self) -> int:
        """Tokens of reasoning in all sequences."""
        return sum(tokens.n_reasoning for tokens in self.tokens)

    async def finished(self) -> None:
        """Return once all sequences have ended."""
        async for _ in self.events():
            pass

    @property
    def results(self) -> list[Result]:
        """What the sequences became; they have ended."""
        return self.generation.results()

    def reason(self, index: int) -> str:
        """Why a sequence ended, as OpenAI says it."""
        if self.results[index].stop_reason not in ("end", "stop"):
            return "length"
        return "tool_calls" if self.readers[index].answer.tool_calls else "stop"

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self.generation.cancel()


async def answering(service: Service, request: Request, chat: ChatCompletion) -> Answering:
    """Have the engine answer a conversation."""
    readers: list[AnswerSplitter] = []
    ignored = ignored_tools(chat)
    if names := _name(request, IGNORED, [_UNWRITABLE.sub("?", name[:64]) for name in ignored]):
        LOG.warning("request %s: tools left out: %s", request.scope["graphml.request_id"], names)

    def prompts() -> tuple[list[list[int]], RequestSettings]:
        settings = service.settings(chat)
        prompt = conversation_of(service, chat, settings.params)
        _name(request, UNFORCED, [_UNWRITABLE_PLACE.sub("?", place[:200]) for place in prompt.unforced])
        readers.extend(_reader(prompt) for _ in range(settings.n))
        return [prompt.ids], replace(settings, params=prompt.params)

    (generation,) = await service.begin(request, chat, prompts)
    return Answering(generation, readers)


def _name(request: Request, header: bytes, names: list[str]) -> str:
    """Add names to a header of the response, which stays one of `MOST_NAMED`; return all of them."""
    headers: list[tuple[bytes, bytes]] = request.scope["graphml.headers"]
    before = next((value.decode() for key, value in headers if key == header), "")
    every = ",".join(list(dict.fromkeys([*filter(None, before.split(",")), *names]))[:MOST_NAMED])
    if every:
        headers[:] = [*(entry for entry in headers if entry[0] != header), (header, every.encode())]
    return every


def _reader(prompt: ChatPrompt) -> AnswerSplitter:
    """What reads an answer; the tokens' own texts are enough where nothing is told apart."""
    return (
        prompt.reader() if prompt.tools or prompt.marks is not None or prompt.format.whole else PlainReader()
    )
