"""Responses with JSON. Infinite numbers and those that are none become null.

A long answer is sent in pieces, as its client takes them, and a long list encoded in parts, so that other
threads go on. Knows JSON; nothing of what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from graphml.server.responses.api_errors import ApiError, Style, style_of
from graphml.server.responses.event_stream import PIECE, encode, messages

T = TypeVar("T")
ANSWERS: Final = "graphml.answers"
"""In a scope: what counts the bytes of answers that wait for their clients, as `text_limits.Held` does."""
AT_A_TIME: Final = 8192
"""Values of a long list that are written at a time, which holds the interpreter's lock."""
PLAIN: Final = "graphml.plain"
"""In a scope: its answer is all there, so a client that does not take it is not waited for as in a stream."""


class WholeResponse(Response):
    """A response whose content is all there; what its client has not taken is not copied."""

    is_kept = False
    """Whether the content is kept anyway, so that waiting for the client takes no more memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope[PLAIN] = True
        if len(self.body) <= PIECE:
            await super().__call__(scope, receive, send)
            return
        held, count = scope.get(ANSWERS), 0 if self.is_kept else len(self.body)
        if held is None:
            await self._send_pieces(send)
            return
        try:
            held.add(count)
        except ApiError as error:
            await error_response(error, style_of(scope["path"]))(scope, receive, send)
            return
        try:
            await self._send_pieces(send)
        finally:
            held.add(-count)

    async def _send_pieces(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for message in messages(bytes(self.body), more=False):
            await send(message)


def raw_json(
    raw: bytes, status: int = 200, headers: dict[str, str] | None = None, is_kept: bool = False
) -> Response:
    """A response with JSON that is written already; is_kept: as of `WholeResponse`."""
    response = WholeResponse(raw, status, headers, "application/json; charset=utf-8")
    response.is_kept = is_kept
    return response


def json_response(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with that data."""
    return raw_json(encode(data), status, headers)


def joined(values: list[bytes]) -> msgspec.Raw:
    """Values that are written already as a list."""
    return msgspec.Raw(b"[" + b",".join(values) + b"]")


def encoded_list(values: Sequence[T], form: Callable[[T], Any]) -> msgspec.Raw:
    """A list of what `form` makes of each value as JSON, made in parts: for threads."""
    parts = (values[i : i + AT_A_TIME] for i in range(0, len(values), AT_A_TIME))
    return joined([encode([form(value) for value in part])[1:-1] for part in parts])


def error_response(error: ApiError, style: Style = "openai") -> Response:
    """A response that says what went wrong."""
    return json_response(error.body(style), error.status, error.headers)


def gone() -> Response:
    """What nobody will read: the client has left."""
    return Response(status_code=499)
