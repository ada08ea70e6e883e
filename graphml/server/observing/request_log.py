"""An id for each request, and who is told of its end: the log, a trace. Times and counts, never contents.

An ASGI middleware around all others. Knows headers and clocks; nothing of what requests mean.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphml.server.observing.told_lines import tell
from graphml.server.options.server_options import HEALTH

ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}", re.ASCII)
"""Ids that clients may give in `X-Request-Id`."""
QUIET = HEALTH | {"/metrics"}
"""Paths that are asked every few seconds, of which nobody is told."""
PLAIN = re.compile(r"[^!-~]")


class Generated(Protocol):
    """What a request has the engine generate; times are monotonic, the first token's None before it came.

    settings: what its tokens are sampled by. stop_reasons: of its sequences, once all have ended.
    """

    ids: list[int]
    n_generated: int
    submitted: float
    first: float | None
    stop_reasons: list[str]

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that were found computed."""

    @property
    def asked(self) -> dict[str, Any]:
        """How its tokens are sampled, by the names of OpenAI's requests."""


@dataclass
class ModelOperation:
    """What a request has the model do: chat, text_completion or embeddings.

    n_input: tokens of texts that are embedded.
    """

    name: str
    model: str
    stream: bool = False
    n_input: int = 0


@dataclass
class EndedRequest:
    """A request that has ended. began_ns: `begin` since 1970. status: 0 without an answer."""

    id: str
    method: str
    path: str
    headers: Headers
    begin: float
    began_ns: int
    status: int = 0
    seconds: float = 0.0
    generations: Sequence[Generated] = ()
    operation: ModelOperation | None = None
    scheme: str = "http"
    server: tuple[str, int | None] | None = None

    @property
    def line(self) -> str:
        """What the log says of it."""
        when = datetime.fromtimestamp(self.began_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        tokens = f" prompt={self.n_prompt} generated={self.n_generated}" if self.generations else ""
        path = PLAIN.sub("?", self.path[:200])
        return f"{when} {self.id} {self.method} {path} {self.status} {self.seconds:.3f}s{tokens}"

    @property
    def n_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(len(generation.ids) for generation in self.generations)

    @property
    def n_generated(self) -> int:
        """Tokens of all answers."""
        return sum(generation.n_generated for generation in self.generations)


class Ended(Protocol):
    """Takes records of requests that have ended."""

    def __call__(self, record: EndedRequest) -> None:
        """Take one."""


@dataclass
class RequestLog:
    """Gives each request its id, in `scope` and the response's header; `listeners` are called at its end.

    A handler puts further headers of the response into the scope's `graphml.headers`.
    """

    app: ASGIApp
    listeners: Sequence[Ended] = field(default_factory=tuple)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client_id = headers.get("x-request-id", "")
        id = client_id if ID.fullmatch(client_id) else secrets.token_hex(16)
        record = EndedRequest(id, scope["method"], scope["path"], headers, time.monotonic(), time.time_ns())
        record.scheme, record.server = scope.get("scheme", "http"), scope.get("server")
        scope["graphml.request_id"], scope["graphml.generations"], scope["graphml.headers"] = id, [], []

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                # Anthropic's clients look for the second.
                named = [(name, id.encode()) for name in (b"X-Request-Id", b"Request-Id")]
                message["headers"] = [*message.get("headers", ()), *named, *scope["graphml.headers"]]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            record.seconds = time.monotonic() - record.begin
            record.generations = scope.pop("graphml.generations")
            record.operation = scope.get("graphml.operation")
            for listener in () if record.path in QUIET else self.listeners:
                listener(record)


def print_line(record: EndedRequest) -> None:
    """Write a request's line to stderr."""
    tell(record.line)
